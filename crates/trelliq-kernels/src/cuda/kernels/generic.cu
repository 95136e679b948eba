// Products for every code and block length, in f32. Macros: CODE, K, L, AXIS, EXACT, X.
#define MASK ((1u << L) - 1)
#define M_MAX 8

__device__ __forceinline__ float weight(const u32* codes, const float* table, u32 row, u32 col, u32 cols, u32 T, u32 inner, float scale) {
#if UNITS
    const u32 off = (31 - col % 32) * K, k = off >> 5;
    const u32 low = __ldg(codes + unit_word(row, col / 32, k, T, inner));
    const u32 high = __ldg(codes + unit_word(row, col / 32, k + 1, T, inner));
    const u32 s = __funnelshift_r(low, high, off & 31) & MASK;
#else
    const u32* block = codes + ((u64)row * (cols / T) + col / T) * (T * K / 32);
    const u32 s = state_at(block, T, col % T, K, MASK);
#endif
    return weight_value<EXACT>(code_value<CODE>(s, table), scale);
}

// AXIS 1: a warp an output row, lanes along the inputs. grid: rows / 4, block: 128.
extern "C" __global__ void __launch_bounds__(128) generic_reduce(const u32* codes, const float* scales, const float* table,
                                                                 const void* x, void* y, u32 m, u32 rows, u32 cols, u32 T, u32 inner) {
    const u32 row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    float acc[M_MAX] = {};
    for (u32 col = lane; col < cols; col += 32) {
        const float w = weight(codes, table, row, col, cols, T, inner, scales[row]);
#pragma unroll
        for (int i = 0; i < M_MAX; ++i)
            if (i < m) acc[i] += w * load_number<X>(x, (u64)i * cols + col);
    }
#pragma unroll
    for (int i = 0; i < M_MAX; ++i) {
        for (int d = 16; d > 0; d /= 2) acc[i] += __shfl_xor_sync(~0u, acc[i], d);
        if (lane == 0 && i < m) store_number<X>(y, (u64)i * rows + row, acc[i]);
    }
}

// AXIS 0: a thread an output, a part of the inputs. grid: (cols / 128, splits), block: 128.
// partial: [splits][m][cols].
extern "C" __global__ void __launch_bounds__(128) generic_scatter(const u32* codes, const float* scales, const float* table,
                                                                  const void* x, float* partial, u32 m, u32 rows, u32 cols, u32 T, u32 inner) {
    const u32 col = blockIdx.x * 128 + threadIdx.x;
    if (col >= cols) return;
    const u32 from = (u32)((u64)rows * blockIdx.y / gridDim.y), to = (u32)((u64)rows * (blockIdx.y + 1) / gridDim.y);
    float acc[M_MAX] = {};
    for (u32 row = from; row < to; ++row) {
        const float w = weight(codes, table, row, col, cols, T, inner, scales[row]);
#pragma unroll
        for (int i = 0; i < M_MAX; ++i)
            if (i < m) acc[i] += w * load_number<X>(x, (u64)i * rows + row);
    }
#pragma unroll
    for (int i = 0; i < M_MAX; ++i)
        if (i < m) partial[((u64)blockIdx.y * m + i) * cols + col] = acc[i];
}

// y[i] = sum of partial[split][i], splits in order.
extern "C" __global__ void fold(const float* partial, void* y, u32 splits, u32 count) {
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float v = 0;
    for (u32 s = 0; s < splits; ++s) v += partial[(u64)s * count + i];
    store_number<X>(y, i, v);
}
