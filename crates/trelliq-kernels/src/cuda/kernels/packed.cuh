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
// w << by through the multiplier: w (2^by + 1) - w, which the compiler does not turn back into a shift.
__device__ __forceinline__ u32 multiplied_left(u32 w, int by) {
    u32 shifted;
    asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(shifted) : "r"(w), "r"((1u << by) + 1), "r"(0u - w));
    return shifted;
}

// The L-bit window at bit `off` of a stream. A shift left goes to the multiplier, so that it and the
// shift-and-logic pipe share the work.
__device__ __forceinline__ u32 window(const u32* w, int off) {
    const int i = off >> 5, s = off & 31;
    if (s == 0) return w[i] & STATE_MASK;
    if (s + L == 32) return w[i] >> s;
    if (L == 16 && s == 8) return __byte_perm(w[i], 0, 0x4421);
    if (s + L < 32) return multiplied_left(w[i], 32 - L - s) >> (32 - L);
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

// A warp's units on their way to shared memory, STAGES slots deep. From Hopper on one lane orders a
// bulk copy a unit; before, all lanes copy 16 bytes at a time.
struct Ring {
    u32 data;      // shared address of the slots
    u32 barriers;  // shared address of STAGES barriers
    u32 lane;

    __device__ __forceinline__ Ring(const u32* slots, const u64* bars, u32 lane)
        : data((u32)__cvta_generic_to_shared(slots)), barriers((u32)__cvta_generic_to_shared(bars)), lane(lane) {
#if __CUDA_ARCH__ >= 900
        if (lane == 0) {
#pragma unroll
            for (u32 s = 0; s < STAGES; ++s)
                asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barriers + 8 * s) : "memory");
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
        __syncwarp();
#endif
    }

    // Every call, also one that has nothing to fetch, is a step of the ring.
    __device__ __forceinline__ void fetch(u32 slot, const u32* unit, bool some) {
        const u32 to = data + slot * (UNIT_WORDS * 4);
#if __CUDA_ARCH__ >= 900
        if (some && lane == 0) {
            const u32 bar = barriers + 8 * slot;
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(UNIT_WORDS * 4) : "memory");
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                         ::"r"(to), "l"(unit), "r"(UNIT_WORDS * 4), "r"(bar) : "memory");
        }
#else
        if (some) {
#pragma unroll
            for (u32 c = 0; c < UNIT_WORDS / 4; c += 32)
                if (UNIT_WORDS / 4 - c >= 32 || lane < UNIT_WORDS / 4 - c) copy16(to + (c + lane) * 16, unit + (c + lane) * 4);
        }
        copy_commit();
#endif
    }

    // Waits for the unit in `slot`; `parity` flips each time around.
    __device__ __forceinline__ void wait(u32 slot, u32 parity) {
#if __CUDA_ARCH__ >= 900
        asm volatile(
            "{\n.reg .pred done;\nagain:\n"
            "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}"
            ::"r"(barriers + 8 * slot), "r"(parity) : "memory");
#else
        copy_wait<STAGES - 2>();
        __syncwarp();
#endif
    }
};

// ---- activations as 8-bit terms: z = step (q1 + q2 / 254 + q3 / 254^2) ----
// Rounds by adding 1.5 * 2^23; the result's low byte is the term.
__device__ __forceinline__ u8 round_term(float& rest) {
    const float sum = rest + 12582912.0f;
    rest = (rest - (sum - 12582912.0f)) * 254.0f;
    return (u8)__float_as_uint(sum);
}
#endif
