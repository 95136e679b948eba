// Kernels over the repacked layout. Expects K, L, AXIS, EXPLICIT (spill words stored) as macros.
//
// A unit is what a warp decodes at once. Coded along the outputs (AXIS 0): 256 outputs x 8 inputs, a
// lane (g = lane / 4, t = lane % 4) holds the runs of 32 outputs number g of inputs t and t + 4.
// Coded along the inputs (AXIS 1): 16 outputs x 256 inputs, a lane holds runs t and t + 4 of rows g
// and g + 8. A stream is one run: K words, and one spill word that is the first word of the run
// before it in its block's ring.
#define STREAMS (AXIS == 0 ? 2 : 4)
#define LANE_WORDS (STREAMS * K)
#define CODE_WORDS (32 * LANE_WORDS)
#define UNIT_WORDS (CODE_WORDS + (EXPLICIT ? 32 * STREAMS : 0))
#define STATE_MASK ((1u << L) - 1)

// Index of word `j` of lane `lane` inside a unit: vectors of 4 words, then of 2.
__device__ __forceinline__ u32 lane_word(u32 lane, u32 j) {
    const u32 full = LANE_WORDS / 4 * 4;
    return j < full ? (j / 4) * 128 + lane * 4 + j % 4 : full * 32 + lane * 2 + (j - full);
}

// Where word `k` of run `run` of stored row `row` lies (k = K: the spill word) among all units.
__device__ __forceinline__ u64 unit_word(u32 row, u32 run, u32 k, u32 T, u32 inner) {
    if (k == K) {
        const u32 runs = T / 32;
        run = run / runs * runs + (run % runs + runs - 1) % runs, k = 0;
    }
    u32 group, place, lane, stream;
    if (AXIS == 0) {
        group = run / 8, place = row / 8, lane = run % 8 * 4 + row % 4, stream = row % 8 / 4;
    } else {
        group = row / 16, place = run / 8, lane = row % 8 * 4 + run % 4, stream = run % 8 / 4 * 2 + row % 16 / 8;
    }
    return ((u64)group * inner + place) * UNIT_WORDS + lane_word(lane, stream * K + k);
}

#ifdef FIXED_LAYOUT
struct Powers { u32 p[32]; };

// The L-bit window at bit `off` of a stream. A shift left goes to the multiplier (by a power of two
// that the compiler cannot see), so that the shift-and-logic pipe and the multiplier share the work.
__device__ __forceinline__ u32 window(const u32* w, int off, const Powers& pow) {
    const int i = off >> 5, s = off & 31;
    if (s == 0) return w[i] & STATE_MASK;
    if (s + L == 32) return w[i] >> s;
    if (L == 16 && s == 8) return __byte_perm(w[i], 0, 0x4421);
    if (s + L < 32) return (w[i] * pow.p[32 - L - s]) >> (32 - L);
    return __funnelshift_r(w[i], w[i + 1], s) & STATE_MASK;
}

__device__ __forceinline__ u32 hash(u32 s) { return s * ONE_MAD_MUL + ONE_MAD_ADD; }

// A lane's words of one unit from shared memory.
__device__ __forceinline__ void load_streams(const u32* unit, u32 lane, const u32 (&spill)[STREAMS],
                                             u32 (&w)[STREAMS][K + 1]) {
    u32 flat[LANE_WORDS];
#pragma unroll
    for (int c = 0; c < LANE_WORDS / 4; ++c) {
        const uint4 v = *(const uint4*)(unit + c * 128 + lane * 4);
        flat[4 * c] = v.x, flat[4 * c + 1] = v.y, flat[4 * c + 2] = v.z, flat[4 * c + 3] = v.w;
    }
    if (LANE_WORDS % 4) {
        const uint2 v = *(const uint2*)(unit + LANE_WORDS / 4 * 128 + lane * 2);
        flat[LANE_WORDS - 2] = v.x, flat[LANE_WORDS - 1] = v.y;
    }
#pragma unroll
    for (int s = 0; s < STREAMS; ++s) {
#pragma unroll
        for (int k = 0; k < K; ++k) w[s][k] = flat[s * K + k];
        w[s][K] = unit[spill[s]];
    }
}

// Run `g` of 8 is preceded by this one in its block's ring of RING runs (a divisor of 8).
__device__ __forceinline__ u32 run_before(u32 run) { return (run & ~(RING - 1)) | ((run - 1) & (RING - 1)); }

// Where a lane's spill words lie inside a unit.
__device__ __forceinline__ void spill_words(u32 lane, u32 (&spill)[STREAMS]) {
    const u32 g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int s = 0; s < STREAMS; ++s) {
        if (EXPLICIT) {
            spill[s] = CODE_WORDS + lane * STREAMS + s;
        } else if (AXIS == 0) {
            spill[s] = lane_word(run_before(g) * 4 + t, s * K);
        } else {
            const u32 from = run_before(t + 4 * (s >> 1));
            spill[s] = lane_word(g * 4 + (from & 3), ((from >> 2) * 2 + (s & 1)) * K);
        }
    }
}

// Copies `unit` (UNIT_WORDS words) to shared memory, a warp together.
__device__ __forceinline__ void fetch_unit(u32 shared_to, const u32* unit, u32 lane) {
#pragma unroll
    for (int c = 0; c < UNIT_WORDS / 4; c += 32) {
        if (UNIT_WORDS / 4 - c >= 32 || lane < UNIT_WORDS / 4 - c) {
            copy16(shared_to + (c + lane) * 16, unit + (c + lane) * 4);
        }
    }
}

// ---- activations as 8-bit terms: z = step (q1 + q2 / 254 + q3 / 254^2) ----
__device__ __forceinline__ int round_term(float& rest) {
    const int q = max(-127, min(127, __float2int_rn(rest)));
    rest = (rest - (float)q) * 254.0f;
    return q;
}
#endif
