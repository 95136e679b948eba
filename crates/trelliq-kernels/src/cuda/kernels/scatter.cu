// Coded along the outputs, few rows of x: y[m, c] = sum_r value(r, c) scale[r] x[m, r].
//
// A product has 16 outputs (row g of it: position p of run g; row g + 8: position p + 16) and 8
// inputs of 4 hash bytes each, so the operand of x is loaded once for 16 products and a lane keeps
// 64 sums. The value is (sum of hash bytes - 510) / 147.8: the bytes are multiplied as they are.
// A warp takes an equal run of the block's units, a block an equal run of all units; sums of groups
// that several warps or blocks share are folded in a fixed order.
#define BATCH 4  // inputs that a thread loads at once
#define ROUND 8  // parts of a sum that are loaded at once
#define SLOT (256 * PAIRS)  // column pairs of a warp's sums, a set

// A warp's sums less 510 times those of x's terms, [p, half][g][pair], to `slot`.
__device__ __forceinline__ void store_sums(int2* slot, int (&acc)[16][4], int terms, u32 lane) {
    const u32 g = lane >> 2, t = lane & 3;
    // `terms`: 4 times the sum over this lane's inputs, of column g.
    terms += __shfl_xor_sync(~0u, terms, 1);
    terms += __shfl_xor_sync(~0u, terms, 2);
    terms = terms / 4 * 510;
    int low = __shfl_sync(~0u, terms, 8 * t), high = __shfl_sync(~0u, terms, 8 * t + 4);
    if (t < PAIRS) {
#pragma unroll
        for (int p = 0; p < 16; ++p) {
            asm volatile("" : "+r"(low), "+r"(high));  // or all differences are taken first, and spill
            slot[((2 * p) * 8 + g) * PAIRS + t] = make_int2(acc[p][0] - low, acc[p][1] - high);
            slot[((2 * p + 1) * 8 + g) * PAIRS + t] = make_int2(acc[p][2] - low, acc[p][3] - high);
        }
    }
#pragma unroll
    for (int p = 0; p < 16; ++p) acc[p][0] = acc[p][1] = acc[p][2] = acc[p][3] = 0;
}

#if JOINED
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) scatter(const __grid_constant__ Parts parts) {
    const u32 which = (blockIdx.x >= parts.first[1] ? 1 : 0) + (blockIdx.x >= parts.first[2] ? 1 : 0);
    const Params& p = parts.part[which];
    const u32 this_block = blockIdx.x - parts.first[which], blocks = parts.first[which + 1] - parts.first[which];
#else
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) scatter(const __grid_constant__ Params p) {
    const u32 this_block = blockIdx.x, blocks = gridDim.x;
#endif
    extern __shared__ __align__(128) u8 shared[];
    __shared__ u64 barriers[WARPS * STAGES];
    __shared__ u32 highest[MM];
    __shared__ float steps[MM];
    __shared__ u32 last_group[WARPS];             // the group that a warp's last sums belong to
    __shared__ u32 owners[MAX_SEGMENTS][2];       // first and last block of a group
    __shared__ bool crossed[MAX_SEGMENTS];        // whether a warp went on to the next group
    __shared__ bool last_block[MAX_SEGMENTS];     // whether this block came last to a group
    const u32 tid = threadIdx.x, warp = tid / 32, lane = tid % 32, g = lane >> 2, t = lane & 3;
    const Deal deal(p.groups * p.inner, blocks);
    const u32 begin = deal.start(this_block), count = deal.start(this_block + 1) - begin;
    const Deal warps(count, WARPS);
    const u32 at = begin + warps.start(warp), end = begin + warps.start(warp + 1);

    // Shared memory: ring of units (later the warps' sums), sums of warps that cross a group's end,
    // terms of x.
    const u32 ring_words = WARPS * STAGES * UNIT_WORDS, slots_words = WARPS * SLOT * 2;
    const u32* units = (const u32*)shared + warp * STAGES * UNIT_WORDS;
    int2* slots = (int2*)shared;
    int2* crossing = (int2*)((u32*)shared + (ring_words > slots_words ? ring_words : slots_words));
    u8* q = (u8*)(crossing + (p.max_segments - 1) * SETS * SLOT);  // [unit][column][8]

    Ring ring(units, barriers + warp * STAGES, lane);
    const u32* next = p.units + (u64)at * UNIT_WORDS;
#pragma unroll
    for (u32 s = 0; s < STAGES - 1; ++s) {
        ring.fetch(s, next, at + s < end);
        next += UNIT_WORDS;
    }
    const u32 first_group = begin / p.inner;
    const u32 segments = (begin + count - 1) / p.inner - first_group + 1;
    if (tid < MM) highest[tid] = 0;
    if (tid < segments) {
        crossed[tid] = false;
        owners[tid][0] = deal.owner((first_group + tid) * p.inner);
        owners[tid][1] = deal.owner((first_group + tid + 1) * p.inner - 1);
    }

#if GIVEN
    // The block's terms; its inputs wrap around at a group's end.
    dependency_wait();
    if (tid < MM) steps[tid] = p.steps[tid];
    for (u32 i = tid; i < count * (COLUMNS / 2); i += THREADS) {
        const u32 unit = begin + i / (COLUMNS / 2);
        u32 place = unit - first_group * p.inner;
        if (place >= p.inner) place %= p.inner;
        ((uint4*)q)[i] = ((const uint4*)p.terms)[place * (COLUMNS / 2) + i % (COLUMNS / 2)];
    }
    __syncthreads();
#else
    // x times scales, as 8-bit terms under one step a row. The block's inputs start at `base` and
    // wrap around at a group's end.
    const u32 base = (begin - first_group * p.inner) * 8, wrap = p.inner * 8, inputs = count * 8;
    auto place = [&](u32 i) {
        u32 input = base + i;
        if (input >= wrap) input -= wrap;
        if (count > p.inner) input %= wrap;
        return i < inputs ? input : p.inputs;
    };
    float scale[BATCH], held[BATCH];
#pragma unroll
    for (int j = 0; j < BATCH; ++j) {
        const u32 input = place(j * THREADS + tid);
        scale[j] = input < p.inputs ? p.scales[input] : 0;
    }
    dependency_wait();
    __syncthreads();
#pragma unroll 1
    for (u32 m = 0; m < MM; ++m) {
        u32 top = 0;
        for (u32 from = 0; from < inputs && m < p.m; from += BATCH * THREADS) {
            float z[BATCH];
#pragma unroll
            for (int j = 0; j < BATCH; ++j) {
                const u32 input = place(from + j * THREADS + tid);
                z[j] = 0;
                if (input < p.inputs) z[j] = load_number<X>(p.x, m * p.inputs + input) * (from ? p.scales[input] : scale[j]);
            }
#pragma unroll
            for (int j = 0; j < BATCH; ++j) {
                top = max(top, __float_as_uint(fabsf(z[j])));
                if (MM == 1 && from == 0) held[j] = z[j];
            }
        }
        raise(highest + m, __uint_as_float(top));
    }
    __syncthreads();
#pragma unroll 1
    for (u32 m = 0; m < MM; ++m) {
        const float inverse = __fdividef(127.0f, __uint_as_float(highest[m]));
        for (u32 from = 0; from < inputs; from += BATCH * THREADS) {
            float z[BATCH];
#pragma unroll
            for (int j = 0; j < BATCH; ++j) {
                if (MM == 1 && from == 0) {
                    z[j] = held[j];
                } else {
                    const u32 input = place(from + j * THREADS + tid);
                    z[j] = 0;
                    if (input < p.inputs && m < p.m) z[j] = load_number<X>(p.x, m * p.inputs + input) * (from ? p.scales[input] : scale[j]);
                }
            }
#pragma unroll
            for (int j = 0; j < BATCH; ++j) {
                const u32 i = from + j * THREADS + tid;
                float rest = z[j] * inverse;
                u8* to = q + (i / 8 * COLUMNS + m * 2 * PAIRS_M) * 8 + i % 8;
                if (i < inputs) {
#pragma unroll
                    for (int k = 0; k < 2 * PAIRS_M; ++k) to[8 * k] = k < TERMS ? round_term(rest) : (u8)0;
                }
            }
        }
    }
    __syncthreads();
    if (tid < MM) steps[tid] = __uint_as_float(highest[tid]) * (1.0f / (127.0f * ONE_MAD_DIVISOR));
#endif

    u32 spill[2];
    spill_words(lane, spill);
    int acc[SETS][16][4];
    int terms[SETS];
#pragma unroll
    for (int s = 0; s < SETS; ++s) {
        terms[s] = 0;
#pragma unroll
        for (int i = 0; i < 16; ++i) acc[s][i][0] = acc[s][i][1] = acc[s][i][2] = acc[s][i][3] = 0;
    }
    // Lanes of columns that are not in use read column 0 and multiply it by 0.
    const u32 repeat = g < COLUMNS ? 0x01010101u : 0;
    const u8* qx = q + ((at - begin) * COLUMNS + (g < COLUMNS ? g : 0)) * 8 + t;
    u32 slot = 0, parity = 0, unit = at, group = at / p.inner;
    while (unit < end) {
        const u32 stop = min(end, (group + 1) * p.inner);  // where the group ends
        for (; unit < stop; ++unit) {
            ring.wait(slot, parity);
            u32 w[2][K + 1];
            load_streams(units + slot * UNIT_WORDS, lane, spill, w);
            u32 b[SETS][2];
#pragma unroll
            for (int s = 0; s < SETS; ++s) {
                b[s][0] = qx[64 * s] * repeat, b[s][1] = qx[64 * s + 4] * repeat;
                terms[s] = __dp4a((int)b[s][0], 0x01010101, __dp4a((int)b[s][1], 0x01010101, terms[s]));
            }
            qx += COLUMNS * 8;
            __syncwarp();
            ring.fetch(slot == 0 ? STAGES - 1 : slot - 1, next, unit + STAGES - 1 < end);
            next += UNIT_WORDS;
            if (++slot == STAGES) slot = 0, parity ^= 1;
#pragma unroll
            for (int i = 0; i < 16; ++i) {
                const u32 a0 = hash(window(w[0], (31 - i) * K)), a1 = hash(window(w[0], (15 - i) * K));
                const u32 a2 = hash(window(w[1], (31 - i) * K)), a3 = hash(window(w[1], (15 - i) * K));
#pragma unroll
                for (int s = 0; s < SETS; ++s) mma_u8s8(acc[s][i], a0, a1, a2, a3, b[s][0], b[s][1]);
            }
        }
        if (unit < end) {
            if (lane == 0) crossed[group - first_group] = true;
#pragma unroll
            for (int s = 0; s < SETS; ++s) {
                store_sums(crossing + ((group - first_group) * SETS + s) * SLOT, acc[s], terms[s], lane);
                terms[s] = 0;
            }
            ++group;
        }
    }
    if (lane == 0) last_group[warp] = at < end ? group : ~0u;
    dependency_release();

    // The block's sums, set by set.
    bool shared_group = false;
#pragma unroll
    for (int set = 0; set < SETS; ++set) {
        __syncthreads();
        store_sums(slots + warp * SLOT, acc[set], terms[set], lane);
        __syncthreads();
#pragma unroll 1
        for (u32 s = 0; s < segments; ++s) {
            const u32 group = first_group + s;
            const bool whole = owners[s][0] == owners[s][1];
            shared_group |= !whole;
#pragma unroll 1
            for (u32 e = tid; e < SLOT / PAIRS_M; e += THREADS) {
                int sums[2 * PAIRS_M] = {};
#pragma unroll
                for (int k = 0; k < PAIRS_M; ++k) {
#pragma unroll
                    for (u32 w = 0; w < WARPS; ++w) {
                        if (last_group[w] != group) continue;
                        const int2 v = slots[w * SLOT + e * PAIRS_M + k];
                        sums[2 * k] += v.x, sums[2 * k + 1] += v.y;
                    }
                    if (crossed[s]) {
                        const int2 v = crossing[(s * SETS + set) * SLOT + e * PAIRS_M + k];
                        sums[2 * k] += v.x, sums[2 * k + 1] += v.y;
                    }
                }
                const u32 m = set * (4 / PAIRS_M) + e % (PAIRS / PAIRS_M), at = e / (PAIRS / PAIRS_M);
                const u32 output = at % 8 * 32 + at / 16 + (at / 8 % 2) * 16;
                const float v = combine<PAIRS_M>(sums) * steps[m];
                if (!whole) {
                    p.partial[((this_block * p.max_segments + s) * MM + m) * 256 + output] = v;
                } else if (m < p.m && group * 256 + output < p.outputs) {
                    store_number<X>(p.y, m * p.outputs + group * 256 + output, v);
                }
            }
        }
    }

    // The block that comes last to a shared group adds all parts, in the order of the blocks.
    if (!shared_group) return;
    __syncthreads();
    if (tid < segments) {
        const u32 from = owners[tid][0], to = owners[tid][1];
        u32* counter = p.counters + first_group + tid;
        last_block[tid] = from < to && arrive(counter, to - from + 1);
        if (last_block[tid]) *counter = 0;
    }
    __syncthreads();
#pragma unroll 1
    for (u32 s = 0; s < segments; ++s) {
        if (!last_block[s]) continue;
        const u32 group = first_group + s, from = owners[s][0], to = owners[s][1];
        const u32 skipped = group - deal.start(from) / p.inner;
        const float4* parts = (const float4*)p.partial;
        const u32 stride = p.max_segments * MM * 64;
        for (u32 e = tid; e < 64 * p.m; e += THREADS) {
            float4 v = __ldcg(parts + from * stride + skipped * MM * 64 + e);
            // All loads of a round are under way before the first sum, behind the last part too.
#pragma unroll 1
            for (u32 block = from + 1; block <= to; block += ROUND) {
                float4 part[ROUND];
#pragma unroll
                for (u32 b = 0; b < ROUND; ++b) {
                    part[b] = make_float4(0, 0, 0, 0);
                    if (block + b <= to) part[b] = __ldcg(parts + (block + b) * stride + e);
                }
#pragma unroll
                for (u32 b = 0; b < ROUND; ++b) v.x += part[b].x, v.y += part[b].y, v.z += part[b].z, v.w += part[b].w;
            }
            // Outputs are a multiple of 32.
            const u32 output = group * 256 + e % 64 * 4;
            if (output < p.outputs) {
                const u32 at = e / 64 * p.outputs + output;
                store_number<X>(p.y, at, v.x), store_number<X>(p.y, at + 1, v.y);
                store_number<X>(p.y, at + 2, v.z), store_number<X>(p.y, at + 3, v.w);
            }
        }
    }
}
