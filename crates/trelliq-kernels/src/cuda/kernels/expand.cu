// The dense [outputs, inputs] matrix from units (UNITS) or stored codes. Macros: CODE, K, L, AXIS, EXACT, X, RUNS
// (T % 32 == 0: a thread decodes a run of 32 with fixed shifts) or not (a thread decodes one weight).
#define MASK ((1u << L) - 1)

#if RUNS
__device__ __forceinline__ void load_run(const u32* codes, u32 row, u32 run, u32 cols, u32 T, u32 inner, u32 (&w)[K + 1]) {
#if UNITS
#pragma unroll
    for (int k = 0; k <= K; ++k) w[k] = __ldg(codes + unit_word(row, run, k, T, inner));
#else
    const u32 runs = T / 32, inside = run % runs;
    const u32* block = codes + (u64)row * (cols / 32 * K) + (u64)(run / runs) * runs * K;
    const u32 at = (runs - 1 - inside) * K;
#pragma unroll
    for (int k = 0; k < K; ++k) w[k] = __ldg(block + at + k);
    w[K] = __ldg(block + (inside == 0 ? 0 : at + K));
#endif
}

__device__ __forceinline__ float run_weight(const u32 (&w)[K + 1], int p, float scale, const float* table) {
    const int off = (31 - p) * K;
    const u32 s = __funnelshift_r(w[off >> 5], w[(off >> 5) + 1], off & 31) & MASK;
    return weight_value<EXACT>(code_value<CODE>(s, table), scale);
}

#if AXIS == 1
// A warp's 32 runs turn over in shared memory, so that whole lines are written.
extern "C" __global__ void __launch_bounds__(128) expand(const u32* codes, const float* scales, const float* table,
                                                         void* out, u32 rows, u32 cols, u32 T, u32 inner) {
    const u32 words = X == 0 ? 32 : 16;
    __shared__ u32 tile[4][32 * (words + 1)];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u64 first = ((u64)blockIdx.x * 4 + warp) * 32, runs = (u64)rows * (cols / 32);
    const u64 index = min(first + lane, runs - 1);
    const u32 row = (u32)(index / (cols / 32)), run = (u32)(index % (cols / 32));
    u32 w[K + 1];
    load_run(codes, row, run, cols, T, inner, w);
    const float scale = scales[row];
    u32* mine = tile[warp] + lane * (words + 1);
#pragma unroll
    for (int i = 0; i < words; ++i) {
        if (X == 0) {
            mine[i] = __float_as_uint(run_weight(w, i, scale, table));
        } else {
            mine[i] = narrow_pair<X>(run_weight(w, 2 * i % 32, scale, table), run_weight(w, (2 * i + 1) % 32, scale, table));
        }
    }
    __syncwarp();
    u32* to = (u32*)out + first * words;
#pragma unroll
    for (int i = 0; i < words; ++i) {
        const u32 word = i * 32 + lane;
        if (first + word / words < runs) to[word] = tile[warp][word / words * (words + 1) + word % words];
    }
}
#else
// A lane decodes neighbouring inputs, so that a warp writes a line of one output. ROWS: inputs a lane.
extern "C" __global__ void __launch_bounds__(256) expand(const u32* codes, const float* scales, const float* table,
                                                         void* out, u32 rows, u32 cols, u32 T, u32 inner) {
    const u32 run = blockIdx.y * 8 + threadIdx.x / 32, row = (blockIdx.x * 32 + threadIdx.x % 32) * ROWS;
    if (run >= cols / 32 || row >= rows) return;
    u32 w[ROWS][K + 1];
#pragma unroll
    for (int i = 0; i < ROWS; ++i) load_run(codes, row + i, run, cols, T, inner, w[i]);
    float scale[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; ++i) scale[i] = scales[row + i];
#pragma unroll
    for (int p = 0; p < 32; ++p) {
        const u64 at = (u64)(run * 32 + p) * rows + row;
        const float first = run_weight(w[0], p, scale[0], table);
        if (ROWS == 2) {
            const float second = run_weight(w[ROWS - 1], p, scale[ROWS - 1], table);
            ((u32*)out)[at / 2] = narrow_pair<X>(first, second);
        } else {
            store_number<X>(out, at, first);
        }
    }
}
#endif
#else
extern "C" __global__ void expand(const u32* codes, const float* scales, const float* table, void* out, u32 rows,
                                  u32 cols, u32 T, u32 inner) {
    const u64 index = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= (u64)rows * cols) return;
    const u32 row = AXIS == 1 ? (u32)(index / cols) : (u32)(index % rows);
    const u32 col = AXIS == 1 ? (u32)(index % cols) : (u32)(index / rows);
    const u32* block = codes + ((u64)row * (cols / T) + col / T) * (T * K / 32);
    const float value = code_value<CODE>(state_at(block, T, col % T, K, MASK), table);
    store_number<X>(out, index, weight_value<EXACT>(value, scales[row]));
}
#endif
