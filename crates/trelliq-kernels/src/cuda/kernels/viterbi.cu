// The Viterbi encoder with tail-biting (QTIP, Algorithm 4) for L of 11..16 and K of 1..6. Macros: K, L,
// PACKED (values lie in registers as pairs of f16: L = 16), DOUBLE (two buffers of path metrics fit).
//
// A thread block codes one trellis block after another with 2^L / 64 threads. A thread keeps the values
// of 64 states for good: the 2^K states of each of its 64 / 2^K neighbouring classes j (states with
// equal low L - K bits, which all lead to the same successors). A step is
//     best[t][j] = min over m of best[t-1][n >> K] + (x - v[n])^2, n = j + m 2^(L-K),
// read and written in shared memory. m takes the place of the lowest K bits of a candidate, so the
// minimum brings it along; the K-bit back-pointers of a thread make one word a step.
#define THREADS ((1u << L) / 64)
#define CLASSES (1u << (L - K))
#define BRANCHES (1u << K)
#define OWN (64 >> K)                               // classes of a thread
#define FAR 1e30f

// (bits & mask) | m in one instruction, which takes `mask` in a register.
__device__ __forceinline__ float tagged(float metric, u32 mask, u32 m) {
    u32 bits;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(bits) : "r"(__float_as_uint(metric)), "r"(mask), "r"(m));
    return __uint_as_float(bits);
}

// Where a class's metric lies: where threads read vectors, 4 words are left out after 16, so that the
// vectors of neighbouring threads lie in different banks.
__device__ __forceinline__ u32 padded(u32 j) { return K <= 2 ? j + j / 16 * 4 : j; }
#define METRICS (K <= 2 ? CLASSES / 16 * 20 : CLASSES)

__device__ __forceinline__ u32 pointer(u32 word, u32 j) { return word >> (j % OWN * K) & (BRANCHES - 1); }

extern "C" __global__ void __launch_bounds__(THREADS, L == 16 ? 1 : 640 / THREADS) viterbi(const float* x, const float* values, u16* states, u32* pointers,
                                                              float factor, u32 blocks, u32 T, u32 passes) {
    extern __shared__ __align__(16) float shared_floats[];
    float* metrics = shared_floats;                                   // one or two of [METRICS]
    float* inputs = shared_floats + (DOUBLE ? 2 : 1) * METRICS;       // [T]
    __shared__ u32 seam;
    __shared__ u32 found[2];
    const u32 tid = threadIdx.x, lane = tid % 32, first = tid * OWN;
    u32 mask;
    asm volatile("mov.u32 %0, %1;" : "=r"(mask) : "n"(~(BRANCHES - 1)));
    u32* mine = pointers + (u64)blockIdx.x * T * THREADS;

#if PACKED
    u32 v[32];
#pragma unroll
    for (u32 i = 0; i < 32; ++i) {
        const u32 c = 2 * i / BRANCHES, m = 2 * i % BRANCHES;
        const u32 low = float_to_half(values[first + c + m * CLASSES]);
        v[i] = low | (u32)float_to_half(values[first + c + (m + 1) * CLASSES]) << 16;
    }
#define VALUE(c, m) half_to_float((u16)(v[((c) * BRANCHES + (m)) / 2] >> ((m) & 1) * 16))
#else
    float v[64];
#pragma unroll
    for (u32 i = 0; i < 64; ++i) v[i] = values[first + i / BRANCHES + i % BRANCHES * CLASSES];
#define VALUE(c, m) v[(c) * BRANCHES + (m)]
#endif

    for (u32 block = blockIdx.x; block < blocks; block += gridDim.x) {
        const float* from = x + (u64)block * T;
        u16* to = states + (u64)block * T;
        for (u32 pass = 0; pass < passes; ++pass) {
            // The free pass is rotated right by half; the seam of later ones lies before 0, then before T - half.
            const u32 shift = pass % 2 == 0 ? T / 2 : 0;
            __syncthreads();
            for (u32 i = tid; i < T; i += THREADS) {
                const u32 place = i + T - shift;
                inputs[i] = from[place < T ? place : place - T] * factor;
            }
            const u32 forced = seam;
            for (u32 i = tid; i < CLASSES; i += THREADS) metrics[padded(i)] = pass == 0 || i == forced ? 0 : FAR;
            if (tid < 2) found[tid] = ~0u;
            __syncthreads();
            float* before = metrics;
            float* after = DOUBLE ? metrics + METRICS : metrics;
            for (u32 step = 0; step < T; ++step) {
                const float input = inputs[step];
                u32 word = 0;
                float best[OWN];
#if K <= 2
                // Neighbouring classes follow from neighbouring ones: vectors, branch by branch.
#pragma unroll
                for (u32 c = 0; c < OWN; ++c) best[c] = __uint_as_float(0x7F7FFFFF);
#pragma unroll
                for (u32 m = 0; m < BRANCHES; ++m) {
#pragma unroll
                    for (u32 i = 0; i < OWN / BRANCHES; i += 4) {
                        const float4 base = *(const float4*)(before + padded((first >> K) + m * (CLASSES >> K) + i));
#pragma unroll
                        for (u32 c = i * BRANCHES; c < (i + 4) * BRANCHES; ++c) {
                            const u32 at = c / BRANCHES % 4;
                            const float d = input - VALUE(c, m), old = at == 0 ? base.x : at == 1 ? base.y : at == 2 ? base.z : base.w;
                            best[c] = fminf(best[c], tagged(__fmaf_rn(d, d, old), mask, m));
                        }
                    }
                }
#else
                float base[BRANCHES];
#pragma unroll
                for (u32 m = 0; m < BRANCHES; ++m) base[m] = before[(first >> K) + m * (CLASSES >> K)];
#pragma unroll
                for (u32 c = 0; c < OWN; ++c) {
                    best[c] = __uint_as_float(0x7F7FFFFF);
#pragma unroll
                    for (u32 m = 0; m < BRANCHES; ++m) {
                        const float d = input - VALUE(c, m);
                        best[c] = fminf(best[c], tagged(__fmaf_rn(d, d, base[m]), mask, m));
                    }
                    // As early as may be: registers are scarce at L = 16.
                    if (DOUBLE && OWN >= 4 && c % 4 == 3) {
                        *(float4*)(after + first + c - 3) = make_float4(best[c - 3], best[c - 2], best[c - 1], best[c]);
                    }
                    word |= (__float_as_uint(best[c]) & (BRANCHES - 1)) << (c * K);
                }
#endif
                if (!DOUBLE) __syncthreads();
#if K <= 2
#pragma unroll
                for (u32 c = 0; c < OWN; ++c) word |= (__float_as_uint(best[c]) & (BRANCHES - 1)) << (c * K);
#pragma unroll
                for (u32 c = 0; c < OWN; c += 4)
                    *(float4*)(after + padded(first + c)) = make_float4(best[c], best[c + 1], best[c + 2], best[c + 3]);
#else
                if (!DOUBLE || OWN < 4) {
#pragma unroll
                    for (u32 c = 0; c < OWN; ++c) after[first + c] = best[c];
                }
#endif
                mine[step * THREADS + tid] = word;
                __syncthreads();
                if (DOUBLE) {
                    float* swap = before;
                    before = after, after = swap;
                }
            }
            // The end of the best path: of all, or the forced class.
            if (pass == 0) {
                float low = FAR;
                u32 at = 0;
                for (u32 c = 0; c < OWN; ++c) {
                    const float metric = before[padded(first + c)];
                    if (metric < low) low = metric, at = first + c;
                }
                const u32 bits = __reduce_min_sync(~0u, __float_as_uint(low));
                if (lane == 0) atomicMin(found, bits);
                __syncthreads();
                if (__float_as_uint(low) == found[0]) atomicMin(found + 1, at);
                __syncthreads();
            }
            if (tid < 32) {
                u32 j = pass == 0 ? found[1] : forced;
                // Passes but the last are for the seam: original position 0, or T - half, of the next.
                const u32 until = pass + 1 < passes ? (pass % 2 == 0 ? T / 2 : T - T / 2) : 0;
                // Two steps at a time: the word of the second is loaded for every branch of the first.
                for (u32 left = T; left > until;) {
                    const u32 step = left - 1;
                    const u32 word = mine[step * THREADS + j / OWN];
                    const u32 guess = (j + lane % BRANCHES * CLASSES) >> K;
                    const u32 next = K < 6 && step > 0 ? mine[(step - 1) * THREADS + guess / OWN] : 0;
                    const u32 branch = pointer(word, j), state = j + branch * CLASSES;
                    const u32 place = step + T - shift;
                    if (lane == 0) to[place < T ? place : place - T] = (u16)state;
                    j = state >> K, --left;
                    if (K < 6 && left > until) {
                        const u32 m = pointer(__shfl_sync(~0u, next, branch), j), state = j + m * CLASSES;
                        const u32 place = step - 1 + T - shift;
                        if (lane == 0) to[place < T ? place : place - T] = (u16)state;
                        j = state >> K, --left;
                    }
                }
                __syncwarp();
                if (lane == 0) seam = j;
            }
            __syncthreads();
        }
    }
}
