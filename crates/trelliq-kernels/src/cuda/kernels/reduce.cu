// Coded along the inputs, few rows of x: y[m, r] = scale[r] sum_c value(r, c) x[m, c].
//
// A product has 16 outputs and 8 inputs, those at one position of 8 runs of 32: 32 products a unit
// go to one set of sums. The operand of x differs at every position, so x lies in shared memory as
// words of one term four times over, [block of 256][column][position / 4][run][4].
#define COLUMN_BYTES (1024 + 64)  // 64: the lanes of two columns read different banks

extern "C" __global__ void __launch_bounds__(THREADS, 1) reduce(const __grid_constant__ Params p) {
    extern __shared__ __align__(128) u8 shared[];
    __shared__ u64 barriers[WARPS * STAGES];
    const u32 tid = threadIdx.x, warp = tid / 32, lane = tid % 32, g = lane >> 2, t = lane & 3;
    const u32 chunk = blockIdx.x % p.chunks, block = blockIdx.x / p.chunks, blocks = gridDim.x / p.chunks;
    const u32 chunk_begin = chunk * p.inner / p.chunks;
    const u32 width = (chunk + 1) * p.inner / p.chunks - chunk_begin;  // units a group in this chunk
    const Deal deal(p.groups * width, blocks);
    const u32 begin = deal.start(block), count = deal.start(block + 1) - begin;
    const Deal warps(count, WARPS);
    const u32 at = begin + warps.start(warp), end = begin + warps.start(warp + 1);

    const u32* units = (const u32*)shared + warp * STAGES * UNIT_WORDS;
    int* sums = (int*)((u32*)shared + WARPS * STAGES * UNIT_WORDS);  // [segment][16][COLUMNS]
    const u32 zeros_at = (WARPS * STAGES * UNIT_WORDS + p.max_segments * 16 * COLUMNS) * 4;
    int* totals = (int*)(shared + zeros_at + 1024);                   // [width][COLUMNS]
    const u32 q_at = (zeros_at + 1024 + (p.inner / p.chunks + 1) * COLUMNS * 4 + 15) & ~15u;
    u8* q = shared + q_at;                                            // see above

    // The unit after `unit` is next in memory unless the group ends in this chunk.
    Ring ring(units, barriers + warp * STAGES, lane);
    u32 cell = at % width, place = cell;
    const u32* next = p.units + ((u64)(at / width) * p.inner + chunk_begin + place) * UNIT_WORDS;
    const u64 jump = (u64)(p.inner - width) * UNIT_WORDS;
#pragma unroll
    for (u32 s = 0; s < STAGES - 1; ++s) {
        ring.fetch(s, next, at + s < end);
        next += UNIT_WORDS;
        if (++place == width) place = 0, next += jump;
    }
    const u32 first_group = begin / width;
    const u32 segments = (begin + count - 1) / width - first_group + 1;
    for (u32 i = tid; i < segments * 16 * COLUMNS; i += THREADS) sums[i] = 0;
    for (u32 i = tid; i < 256; i += THREADS) ((u32*)(shared + zeros_at))[i] = 0;
    dependency_wait();
    for (u32 i = tid; i < width * COLUMNS; i += THREADS) totals[i] = p.totals[chunk_begin * COLUMNS + i];
#pragma unroll 4
    for (u32 i = tid; i < width * COLUMNS * 64; i += THREADS) {
        const u32 column = i / 64, run = i % 8, quarter = i / 8 % 8;
        const u32 four = ((const u32*)p.terms)[(chunk_begin * COLUMNS + column) * 64 + run * 8 + quarter];
        *(uint4*)(q + column * COLUMN_BYTES + (quarter * 8 + run) * 16) =
            make_uint4(__byte_perm(four, 0, 0x0000), __byte_perm(four, 0, 0x1111), __byte_perm(four, 0, 0x2222), __byte_perm(four, 0, 0x3333));
    }
    __syncthreads();

    u32 spill[4];
    spill_words(lane, spill);
    int acc[SETS][2][4];
    int centre[SETS][2];
#pragma unroll
    for (int s = 0; s < SETS; ++s) {
        centre[s][0] = centre[s][1] = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[s][0][i] = acc[s][1][i] = 0;
    }
    const bool used = g < COLUMNS;
    const u32 lane_q = (used ? q_at + g * COLUMN_BYTES : zeros_at) + t * 16;
    const u32 stride = used ? COLUMNS * COLUMN_BYTES : 0;
    u32 slot = 0, parity = 0, group = at / width - first_group;
    for (u32 unit = at; unit < end; ++unit) {
        ring.wait(slot, parity);
        u32 w[4][K + 1];
        load_streams(units + slot * UNIT_WORDS, lane, spill, w);
        __syncwarp();
        ring.fetch(slot == 0 ? STAGES - 1 : slot - 1, next, unit + STAGES - 1 < end);
        next += UNIT_WORDS;
        if (++place == width) place = 0, next += jump;
        if (++slot == STAGES) slot = 0, parity ^= 1;
        const u8* qx = shared + (lane_q + cell * stride);
#pragma unroll
        for (int c = 0; c < 8; ++c) {
            uint4 low[SETS], high[SETS];
#pragma unroll
            for (int s = 0; s < SETS; ++s) {
                low[s] = *(const uint4*)(qx + s * 8 * COLUMN_BYTES + c * 128);
                high[s] = *(const uint4*)(qx + s * 8 * COLUMN_BYTES + c * 128 + 64);
            }
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const int off = (31 - 4 * c - j) * K;
                const u32 a0 = hash(window(w[0], off)), a1 = hash(window(w[1], off));
                const u32 a2 = hash(window(w[2], off)), a3 = hash(window(w[3], off));
#pragma unroll
                for (int s = 0; s < SETS; ++s) {
                    const u32 b0 = j == 0 ? low[s].x : j == 1 ? low[s].y : j == 2 ? low[s].z : low[s].w;
                    const u32 b1 = j == 0 ? high[s].x : j == 1 ? high[s].y : j == 2 ? high[s].z : high[s].w;
                    mma_u8s8(acc[s][j & 1], a0, a1, a2, a3, b0, b1);
                }
            }
        }
#pragma unroll
        for (int s = 0; s < SETS; ++s) {
            if (t < PAIRS) {
                const int2 v = *(const int2*)(totals + cell * COLUMNS + s * 8 + 2 * t);
                centre[s][0] += v.x, centre[s][1] += v.y;
            }
        }
        if (++cell == width || unit + 1 == end) {
            int* to = sums + group * 16 * COLUMNS;
#pragma unroll
            for (int s = 0; s < SETS; ++s) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int v = acc[s][0][i] + acc[s][1][i] - 510 * centre[s][i & 1];
                    if (t < PAIRS) atomicAdd(to + (g + i / 2 * 8) * COLUMNS + s * 8 + 2 * t + (i & 1), v);
                    acc[s][0][i] = acc[s][1][i] = 0;
                }
                centre[s][0] = centre[s][1] = 0;
            }
            cell = 0, ++group;
        }
    }
    dependency_release();
    __syncthreads();

    bool shared_group = false;
    for (u32 e = tid; e < segments * 16 * MM; e += THREADS) {
        const u32 row = e % 16, s = e / 16 % segments, m = e / 16 / segments;
        int v[2 * PAIRS_M];
#pragma unroll
        for (int k = 0; k < 2 * PAIRS_M; ++k) v[k] = sums[(s * 16 + row) * COLUMNS + m * 2 * PAIRS_M + k];
        const u32 group = first_group + s, output = group * 16 + row;
        const float scale = output < p.outputs ? p.scales[output] : 0;
        const float sum = combine<PAIRS_M>(v) * p.steps[m] * scale;
        const bool whole = p.chunks == 1 && deal.owner(group * width) == deal.owner(group * width + width - 1);
        if (!whole) {
            p.partial[((u64)(blockIdx.x * p.max_segments + s) * MM + m) * 16 + row] = sum;
            shared_group = true;
        } else if (m < p.m && output < p.outputs) {
            store_number<X>(p.y, (u64)m * p.outputs + output, sum);
        }
    }

    // The block that comes last to a shared group adds all parts, by chunk and block.
    if (__syncthreads_or(shared_group) == 0) return;
    int* last_block = sums;  // [segment]
    for (u32 s = tid; s < segments; s += THREADS) {
        const u32 group = first_group + s;
        u32 parts = 0;
        for (u32 c = 0; c < p.chunks; ++c) {
            const u32 wide = (c + 1) * p.inner / p.chunks - c * p.inner / p.chunks;
            const Deal other(p.groups * wide, blocks);
            parts += other.owner(group * wide + wide - 1) - other.owner(group * wide) + 1;
        }
        last_block[s] = parts > 1 && arrive(p.counters + group, parts);
        if (last_block[s]) p.counters[group] = 0;
    }
    __syncthreads();
    for (u32 i = tid; i < segments * 16 * p.m; i += THREADS) {
        const u32 s = i / (16 * p.m), e = i % (16 * p.m), group = first_group + s;
        if (!last_block[s]) continue;
        float v = 0;
        for (u32 c = 0; c < p.chunks; ++c) {
            const u32 wide = (c + 1) * p.inner / p.chunks - c * p.inner / p.chunks;
            const Deal other(p.groups * wide, blocks);
            const u32 to = other.owner(group * wide + wide - 1);
            for (u32 b = other.owner(group * wide); b <= to; ++b) {
                const u32 segment = group - other.start(b) / wide;
                v += __ldcg(p.partial + ((b * p.chunks + c) * p.max_segments + segment) * MM * 16 + e);
            }
        }
        const u32 output = group * 16 + e % 16;
        if (output < p.outputs) store_number<X>(p.y, e / 16 * p.outputs + output, v);
    }
}
