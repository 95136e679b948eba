// Coded along the outputs, few rows of x: y[m, c] = sum_r value(r, c) scale[r] x[m, r].
//
// A product has 16 outputs (row g of it: position p of run g; row g + 8: position p + 16) and 8
// inputs of 4 hash bytes each, so the operand of x is loaded once for 16 products and a lane keeps
// 64 sums. The value is (sum of hash bytes - 510) / 147.8: the bytes are multiplied as they are.
// A warp takes an equal run of the block's units, a block an equal run of all units; sums of groups
// that several warps or blocks share are folded in a fixed order.

// Integer sums of a warp, [p, half][g][pair], to its slot.
__device__ __forceinline__ void store_sums(int2* slot, const int (&acc)[16][4], u32 lane) {
    const u32 g = lane >> 2, t = lane & 3;
    if (t >= PAIRS) return;
#pragma unroll
    for (int p = 0; p < 16; ++p) {
        slot[((2 * p) * 8 + g) * PAIRS + t] = make_int2(acc[p][0], acc[p][1]);
        slot[((2 * p + 1) * 8 + g) * PAIRS + t] = make_int2(acc[p][2], acc[p][3]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) scatter(const __grid_constant__ Params p) {
    extern __shared__ __align__(128) u8 shared[];
    __shared__ u32 last_of_group;
    const u32 tid = threadIdx.x, warp = tid / 32, lane = tid % 32, g = lane >> 2, t = lane & 3;
    const Deal deal = {gridDim.x, (u64)p.groups * p.inner};
    const u32 begin = deal.start(blockIdx.x), count = deal.start(blockIdx.x + 1) - begin;
    const u32 first_group = begin / p.inner;
    const u32 segments = count == 0 ? 0 : (begin + count - 1) / p.inner - first_group + 1;
    const u32 at = begin + (u32)((u64)count * warp / WARPS);
    const u32 end = begin + (u32)((u64)count * (warp + 1) / WARPS);

    // Shared memory: ring of units (later the warps' sums), sums of warps that cross a group's end,
    // quantized x, then maxima and sums of it.
    const u32 slot_words = 256 * PAIRS * 2;
    const u32 ring_words = WARPS * STAGES * UNIT_WORDS, slots_words = WARPS * slot_words;
    u32* ring = (u32*)shared + warp * STAGES * UNIT_WORDS;
    int2* slots = (int2*)shared;
    int2* crossing = (int2*)((u32*)shared + (ring_words > slots_words ? ring_words : slots_words));
    u32* highest = (u32*)(crossing + (p.max_segments - 1) * SETS * (slot_words / 2));  // [segment][MM]
    int* totals = (int*)(highest + p.max_segments * MM);                               // [segment][COLUMNS]
    u8* q = (u8*)(totals + p.max_segments * COLUMNS);                                  // [unit][column][8]

    const u32* next = p.units + (u64)at * UNIT_WORDS;
    const u32 ring_address = shared_address(ring);
#pragma unroll
    for (u32 s = 0; s < STAGES - 1; ++s) {
        if (at + s < end) fetch_unit(ring_address + s * UNIT_WORDS * 4, next, lane);
        copy_commit();
        next += UNIT_WORDS;
    }
    for (u32 i = tid; i < p.max_segments * (MM + COLUMNS); i += THREADS) highest[i] = 0;
    dependency_wait();
    __syncthreads();

    // Activations times scales, as 8-bit terms under one step a segment and row.
    for (u32 s = 0; s < segments; ++s) {
        const u32 low = max(begin, (first_group + s) * p.inner), high = min(begin + count, (first_group + s + 1) * p.inner);
        const u32 base = (low - (first_group + s) * p.inner) * 8, inputs = (high - low) * 8;
        for (u32 m = 0; m < MM; ++m) {
            float top = 0;
            if (m < p.m) {
                for (u32 i = tid; i < inputs; i += THREADS) {
                    if (base + i >= p.inputs) break;
                    const float z = load_number<X>(p.x, (u64)m * p.inputs + base + i) * p.scales[base + i];
                    top = __uint_as_float(max(__float_as_uint(top), __float_as_uint(fabsf(z))));
                }
            }
            raise(highest + s * MM + m, top);
        }
    }
    __syncthreads();
    for (u32 s = 0; s < segments; ++s) {
        const u32 low = max(begin, (first_group + s) * p.inner), high = min(begin + count, (first_group + s + 1) * p.inner);
        const u32 base = (low - (first_group + s) * p.inner) * 8, inputs = (high - low) * 8;
        for (u32 m = 0; m < MM; ++m) {
            const float inverse = 127.0f / __uint_as_float(highest[s * MM + m]);
            int sums[3] = {0, 0, 0};
            for (u32 i = tid; i < inputs; i += THREADS) {
                float rest = 0;
                if (m < p.m && base + i < p.inputs) {
                    rest = load_number<X>(p.x, (u64)m * p.inputs + base + i) * p.scales[base + i] * inverse;
                }
                u8* to = q + ((low - begin + i / 8) * COLUMNS + m * 2 * PAIRS_M) * 8 + i % 8;
#pragma unroll
                for (int k = 0; k < 2 * PAIRS_M; ++k) {
                    const int term = k < TERMS ? round_term(rest) : 0;
                    if (k < TERMS) sums[k] += term;
                    to[8 * k] = (u8)term;
                }
            }
#pragma unroll
            for (int k = 0; k < TERMS; ++k) {
                const int sum = __reduce_add_sync(~0u, sums[k]);
                if (lane == 0) atomicAdd(totals + s * COLUMNS + m * 2 * PAIRS_M + k, sum);
            }
        }
    }
    __syncthreads();

    u32 spill[2];
    spill_words(lane, spill);
    int acc[SETS][16][4];
#pragma unroll
    for (int s = 0; s < SETS; ++s)
#pragma unroll
        for (int i = 0; i < 16; ++i) acc[s][i][0] = acc[s][i][1] = acc[s][i][2] = acc[s][i][3] = 0;
    // Lanes of columns that are not in use read column 0 and multiply it by 0.
    const u32 repeat = g < COLUMNS ? 0x01010101u : 0;
    const u8* qx = q + ((at - begin) * COLUMNS + (g < COLUMNS ? g : 0)) * 8 + t;
    u32 slot = 0;
    u32 fence = at / p.inner * p.inner + p.inner;  // where the group ends
    for (u32 unit = at; unit < end; ++unit) {
        if (unit == fence) {
            int2* to = crossing + (unit / p.inner - first_group - 1) * SETS * (slot_words / 2);
#pragma unroll
            for (int s = 0; s < SETS; ++s) {
                store_sums(to + s * (slot_words / 2), acc[s], lane);
#pragma unroll
                for (int i = 0; i < 16; ++i) acc[s][i][0] = acc[s][i][1] = acc[s][i][2] = acc[s][i][3] = 0;
            }
            fence += p.inner;
        }
        copy_wait<STAGES - 2>();
        __syncwarp();
        u32 w[2][K + 1];
        load_streams(ring + slot * UNIT_WORDS, lane, spill, w);
        if (unit + STAGES - 1 < end) {
            const u32 free = slot == 0 ? STAGES - 1 : slot - 1;
            fetch_unit(ring_address + free * UNIT_WORDS * 4, next, lane);
        }
        copy_commit();
        next += UNIT_WORDS;
        slot = slot == STAGES - 1 ? 0 : slot + 1;
        u32 b[SETS][2];
#pragma unroll
        for (int s = 0; s < SETS; ++s) b[s][0] = qx[64 * s] * repeat, b[s][1] = qx[64 * s + 4] * repeat;
        qx += COLUMNS * 8;
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            const u32 a0 = hash(window(w[0], (31 - i) * K, p.pow)), a1 = hash(window(w[0], (15 - i) * K, p.pow));
            const u32 a2 = hash(window(w[1], (31 - i) * K, p.pow)), a3 = hash(window(w[1], (15 - i) * K, p.pow));
#pragma unroll
            for (int s = 0; s < SETS; ++s) mma_u8s8(acc[s][i], a0, a1, a2, a3, b[s][0], b[s][1]);
        }
    }
    copy_wait<0>();
    dependency_release();

    // The block's sums, set by set.
    bool shared_group = false;
#pragma unroll
    for (int set = 0; set < SETS; ++set) {
        __syncthreads();
        store_sums(slots + warp * (slot_words / 2), acc[set], lane);
        __syncthreads();
        for (u32 s = 0; s < segments; ++s) {
            const u32 group = first_group + s, group_begin = group * p.inner, group_end = group_begin + p.inner;
            const u32 low = max(begin, group_begin) - begin, high = min(begin + count, group_end) - begin;
            const Deal warps = {WARPS, count};
            const u32 from = warps.owner(low), last = warps.owner(high - 1);
            const bool crosses = warps.start(last + 1) > high;
            const u32 to = crosses ? last : last + 1;
            const bool whole = deal.owner(group_begin) == deal.owner(group_end - 1);
            for (u32 e = tid; e < 256 * PAIRS / PAIRS_M; e += THREADS) {
                int sums[2 * PAIRS_M];
#pragma unroll
                for (int k = 0; k < PAIRS_M; ++k) {
                    int2 sum = make_int2(0, 0);
                    for (u32 w = from; w < to; ++w) {
                        const int2 v = slots[w * (slot_words / 2) + e * PAIRS_M + k];
                        sum.x += v.x, sum.y += v.y;
                    }
                    if (crosses) {
                        const int2 v = crossing[(s * SETS + set) * (slot_words / 2) + e * PAIRS_M + k];
                        sum.x += v.x, sum.y += v.y;
                    }
                    sums[2 * k] = sum.x, sums[2 * k + 1] = sum.y;
                }
                const u32 m = set * (8 / (2 * PAIRS_M)) + e % (PAIRS / PAIRS_M);
                const u32 place = e / (PAIRS / PAIRS_M);
                const u32 output = place % 8 * 32 + place / 16 + (place / 8 % 2) * 16;
#pragma unroll
                for (int k = 0; k < TERMS; ++k) sums[k] -= 510 * totals[s * COLUMNS + m * 2 * PAIRS_M + k];
                const float step = __uint_as_float(highest[s * MM + m]) * (1.0f / (127.0f * ONE_MAD_DIVISOR));
                const float v = combine<PAIRS_M>(sums) * step;
                if (!whole) {
                    p.partial[((u64)(blockIdx.x * p.max_segments + s) * MM + m) * 256 + output] = v;
                    shared_group = true;
                } else if (m < p.m && group * 256 + output < p.outputs) {
                    store_number<X>(p.y, (u64)m * p.outputs + group * 256 + output, v);
                }
            }
        }
    }

    // The block that comes last to a shared group adds all parts, in the order of the blocks.
    if (__syncthreads_or(shared_group) == 0) return;
    for (u32 s = 0; s < segments; ++s) {
        const u32 group = first_group + s;
        const u32 from = deal.owner(group * p.inner), to = deal.owner(group * p.inner + p.inner - 1);
        if (from == to) continue;
        __threadfence();
        __syncthreads();
        if (tid == 0) last_of_group = atomicAdd(p.counters + group, 1) == to - from;
        __syncthreads();
        if (!last_of_group) continue;
        __threadfence();
        for (u32 e = tid; e < 256 * p.m; e += THREADS) {
            float v = 0;
#pragma unroll 4
            for (u32 block = from; block <= to; ++block) {
                const u32 segment = group - deal.start(block) / p.inner;
                v += __ldcg(p.partial + ((u64)(block * p.max_segments + segment) * MM) * 256 + e);
            }
            const u32 output = group * 256 + e % 256;
            if (output < p.outputs) store_number<X>(p.y, (u64)(e / 256) * p.outputs + output, v);
        }
        if (tid == 0) p.counters[group] = 0;
    }
}
