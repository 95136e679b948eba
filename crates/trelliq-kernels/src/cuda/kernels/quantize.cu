// x (times scales, for AXIS 0) as 8-bit terms under one step a row, for the integer kernels. A block a
// row of MM, rows from m on are zeros; a warp takes 256 inputs at a time, a lane 8 of them.
// terms: AXIS 0 [inputs / 8][COLUMNS][8], AXIS 1 [inputs / 256][COLUMNS][256]; totals (AXIS 1):
// [inputs / 256][COLUMNS] sums of the terms; steps: [MM].
#define CELLS 4  // of a warp that stay in registers

extern "C" __global__ void __launch_bounds__(1024) quantize(const void* x, const float* scales, u8* terms, int* totals,
                                                            float* steps, u32 m, u32 inputs, u32 cells) {
    __shared__ u32 highest;
    const u32 row = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float scale[CELLS][8], z[CELLS][8];
    if (AXIS == 0) {
#pragma unroll
        for (u32 c = 0; c < CELLS; ++c)
#pragma unroll
            for (u32 j = 0; j < 8; ++j) {
                const u32 i = (c * 32 + warp) * 256 + lane * 8 + j;
                scale[c][j] = i < inputs ? scales[i] : 0;
            }
    }
    if (threadIdx.x == 0) highest = 0;
    dependency_release();
    dependency_wait();
    auto load = [&](u32 cell, u32 c, float (&to)[8]) {
#pragma unroll
        for (u32 j = 0; j < 8; ++j) {
            const u32 i = cell * 256 + lane * 8 + j;
            to[j] = 0;
            if (row < m && i < inputs) to[j] = load_number<X>(x, (u64)row * inputs + i);
            if (AXIS == 0 && i < inputs) to[j] *= c < CELLS ? scale[c < CELLS ? c : 0][j] : scales[i];
        }
    };
    u32 top = 0;
#pragma unroll
    for (u32 c = 0; c < CELLS; ++c) {
        load(c * 32 + warp, c, z[c]);
#pragma unroll
        for (u32 j = 0; j < 8; ++j) top = max(top, __float_as_uint(fabsf(z[c][j])));
    }
    for (u32 cell = CELLS * 32 + warp; cell < cells; cell += 32) {
        float more[8];
        load(cell, CELLS, more);
#pragma unroll
        for (u32 j = 0; j < 8; ++j) top = max(top, __float_as_uint(fabsf(more[j])));
    }
    __syncthreads();
    raise(&highest, __uint_as_float(top));
    __syncthreads();
    const float most = __uint_as_float(highest);
    if (threadIdx.x == 0) steps[row] = most * (1.0f / (127.0f * ONE_MAD_DIVISOR));
    const float inverse = __fdividef(127.0f, most);
    auto store = [&](u32 cell, float (&from)[8]) {
        if (cell >= cells) return;
#pragma unroll
        for (u32 j = 0; j < 8; ++j) from[j] *= inverse;
#pragma unroll
        for (u32 k = 0; k < 2 * PAIRS_M; ++k) {
            u32 word[2] = {0, 0};
#pragma unroll
            for (u32 j = 0; j < 8; ++j) {
                if (k < TERMS) word[j / 4] |= (u32)round_term(from[j]) << (j % 4 * 8);
            }
            const u32 column = row * 2 * PAIRS_M + k;
            if (AXIS == 0) {
                *(uint2*)(terms + ((cell * 32 + lane) * COLUMNS + column) * 8) = make_uint2(word[0], word[1]);
            } else {
                *(uint2*)(terms + (cell * COLUMNS + column) * 256 + lane * 8) = make_uint2(word[0], word[1]);
                int sum = __dp4a((int)word[0], 0x01010101, __dp4a((int)word[1], 0x01010101, 0));
                sum = __reduce_add_sync(~0u, sum);
                if (lane == 0) totals[cell * COLUMNS + column] = sum;
            }
        }
    };
#pragma unroll
    for (u32 c = 0; c < CELLS; ++c) store(c * 32 + warp, z[c]);
    for (u32 cell = CELLS * 32 + warp; cell < cells; cell += 32) {
        float more[8];
        load(cell, CELLS, more);
        store(cell, more);
    }
}
