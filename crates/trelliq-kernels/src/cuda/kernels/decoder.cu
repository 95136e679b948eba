// What a decoder does between its linear layers, in f32; keys and values are kept as f16. Every sum has a fixed order.

// One token of a step: the cache of its sequence and its position there. A cache is [position][layer][key, value][kv width].
struct Row {
    u16* cache;
    u32 position;
    u32 unused;
};

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
    return v;
}

// The sum over a block, for all its threads.
__device__ __forceinline__ float block_sum(float v, float* shared) {
    v = warp_sum(v);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
    __syncthreads();
    return warp_sum(threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : 0);
}

#ifdef NORM
// x += added (normed by `post` first, where that is given); out = x / sqrt(mean(x^2) + eps) * weight. A block a row.
extern "C" __global__ void rms_norm(float* x, const float* added, const float* post, const float* weight, float* out, u32 width, float eps) {
    __shared__ float shared[32];
    const u64 row = (u64)blockIdx.x * width;
    dependency_release();
    dependency_wait();
    if (added) {
        float factor = 1;
        if (post) {
            float sum = 0;
            for (u32 i = threadIdx.x; i < width; i += blockDim.x) sum += added[row + i] * added[row + i];
            factor = 1.0f / sqrtf(block_sum(sum, shared) / (float)width + eps);
        }
        for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
            const float v = added[row + i] * factor;
            x[row + i] += post ? v * post[i] : v;
        }
    }
    float sum = 0;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) sum += x[row + i] * x[row + i];
    const float factor = 1.0f / sqrtf(block_sum(sum, shared) / (float)width + eps);
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) out[row + i] = x[row + i] * factor * weight[i];
}
#endif

#ifdef RESIDUAL
// The same with rotations: `added` are the sums of a product whose output side is `out`, and `to` gets what a product with the
// input side `in` reads. A block a row.
extern "C" __global__ void __launch_bounds__(1024) residual(float* x, const float* added, const __grid_constant__ Side out, const float* post,
                                                            const float* weight, const __grid_constant__ Side in, float* to, u32 width, float eps) {
    __shared__ float sums[32];
    extern __shared__ float pieces[];
    const Place place(threadIdx.x);
    const u32 start = place.piece * PIECE;
    float* shared = pieces + start;
    const u64 row = (u64)blockIdx.x * width;
    float scales[HELD], ins[HELD], outs[HELD], v[HELD], sum[HELD];
    load_piece<true>(weight, start, width, place, scales);
    load_channels(in, start, width, place, ins);
    if (added) load_channels(out, start, width, place, outs);
    dependency_release();
    dependency_wait();
    load_piece<true>(x + row, start, width, place, v);
    if (added) {
        load_piece<false>(added + row, start, width, place, sum);
        rotate_outputs(out, outs, start, width, place, shared, sum);
        if (post) {
            float squares = 0;
#pragma unroll
            for (u32 j = 0; j < HELD; ++j) squares += sum[j] * sum[j];
            const float factor = 1.0f / sqrtf(block_sum(squares, sums) / (float)width + eps);
            load_piece<true>(post, start, width, place, outs);
#pragma unroll
            for (u32 j = 0; j < HELD; ++j) sum[j] = sum[j] * factor * outs[j];
        }
#pragma unroll
        for (u32 j = 0; j < HELD; ++j) v[j] += sum[j];
        store_piece<true>(x + row, start, width, place, v);
    }
    float squares = 0;
#pragma unroll
    for (u32 j = 0; j < HELD; ++j) squares += v[j] * v[j];
    const float factor = 1.0f / sqrtf(block_sum(squares, sums) / (float)width + eps);
#pragma unroll
    for (u32 j = 0; j < HELD; ++j) v[j] = v[j] * factor * scales[j];
    rotate_inputs(in, ins, place, shared, v);
    store_piece<false>(to + row, start, width, place, v);
}
#endif

#ifdef HEADS
// Norms and turns the heads of q (in place) and k, and puts k and v into the cache. Grid: (query heads + 2 key heads, rows).
extern "C" __global__ void heads(const Row* rows, float* q, const float* k, const float* v, const float* q_norm, const float* k_norm,
                                 const float* frequencies, u32 query_heads, u32 kv_heads, u32 dim, u64 layer_start, u64 position_stride, float eps) {
    __shared__ float shared[32];
    const u32 head = blockIdx.x, row = blockIdx.y, i = threadIdx.x, half = dim / 2;
    dependency_release();
    const Row at = rows[row];  // written before the first launch of a step
    dependency_wait();
    u16* cache = at.cache + at.position * position_stride + layer_start;
    if (head >= query_heads + kv_heads) {
        const u32 start = (head - query_heads - kv_heads) * dim;
        const float* from = v + (u64)row * kv_heads * dim + start;
        for (u32 j = i; j < dim; j += blockDim.x) cache[kv_heads * dim + start + j] = float_to_half(from[j]);
        return;
    }
    const bool query = head < query_heads;
    const u32 start = (query ? head : head - query_heads) * dim;
    const float* from = query ? q + (u64)row * query_heads * dim + start : k + (u64)row * kv_heads * dim + start;
    const float* weight = query ? q_norm : k_norm;
    float low = i < half ? from[i] : 0, high = i < half ? from[i + half] : 0;
    if (weight) {
        const float factor = 1.0f / sqrtf(block_sum(low * low + high * high, shared) / (float)dim + eps);
        if (i < half) low = low * factor * weight[i], high = high * factor * weight[i + half];
    }
    if (i >= half) return;
    float sine, cosine;
    sincosf((float)at.position * frequencies[i], &sine, &cosine);
    const float a = low * cosine - high * sine, b = high * cosine + low * sine;
    if (query) {
        float* to = q + (u64)row * query_heads * dim + start;
        to[i] = a, to[i + half] = b;
    } else {
        cache[start + i] = float_to_half(a), cache[start + i + half] = float_to_half(b);
    }
}
#endif

#ifdef ROTATED_HEADS
// The same for products whose output sides are still to be applied, and heads that divide a piece: a block a piece of q, k or v.
// Grid: (pieces of q + 2 * pieces of k, rows).
extern "C" __global__ void __launch_bounds__(THREADS_A_PIECE) rotated_heads(
    const Row* rows, float* q, const float* k, const float* v, const __grid_constant__ Side q_side, const __grid_constant__ Side k_side,
    const __grid_constant__ Side v_side, const float* q_norm, const float* k_norm, const float* frequencies, u32 q_width, u32 kv_width, u32 dim,
    u64 layer_start, u64 position_stride, float eps) {
    __shared__ float held[PIECE];
    const Place place(threadIdx.x);
    const u32 row = blockIdx.y, half = dim / 2;
    const u32 q_pieces = (q_width + PIECE - 1) / PIECE, kv_pieces = (kv_width + PIECE - 1) / PIECE;
    const bool query = blockIdx.x < q_pieces, key = !query && blockIdx.x < q_pieces + kv_pieces;
    const u32 piece = query ? blockIdx.x : (blockIdx.x - q_pieces) % kv_pieces;
    const u32 start = piece * PIECE, width = query ? q_width : kv_width, count = min(PIECE, width - start);
    const Side side = query ? q_side : key ? k_side : v_side;
    const float* weight = query ? q_norm : k_norm;
    float channels[HELD], w[HELD];
    load_channels(side, start, width, place, channels);
    dependency_release();
    const Row at = rows[row];  // written before the first launch of a step
    dependency_wait();
    u16* cache = at.cache + at.position * position_stride + layer_start + start;
    load_piece<false>((query ? q : key ? k : v) + (u64)row * width, start, width, place, w);
    rotate_outputs(side, channels, start, width, place, held, w);
    if (!query && !key) {
#pragma unroll
        for (u32 j = 0; j < HELD; ++j)
            if (place.run(j) < count) cache[kv_width + place.run(j)] = float_to_half(w[j]);
        return;
    }
    __syncthreads();
#pragma unroll
    for (u32 j = 0; j < HELD; ++j) held[place.run(j)] = w[j];
    __syncthreads();
    if (weight) {
        for (u32 head = place.warp * dim; head < count; head += WARPS_A_PIECE * dim) {
            float squares = 0;
            for (u32 i = place.lane; i < dim; i += 32) squares += held[head + i] * held[head + i];
            const float factor = 1.0f / sqrtf(warp_sum(squares) / (float)dim + eps);
            for (u32 i = place.lane; i < dim; i += 32) held[head + i] = held[head + i] * factor * weight[i];
        }
        __syncthreads();
    }
    float* to = q + (u64)row * width + start;
#pragma unroll 1
    for (u32 pair = threadIdx.x; pair < count / 2; pair += THREADS_A_PIECE) {
        const u32 i = pair % half, low_at = pair / half * dim + i;
        const float low = held[low_at], high = held[low_at + half];
        float sine, cosine;
        sincosf((float)at.position * frequencies[i], &sine, &cosine);
        const float a = low * cosine - high * sine, b = high * cosine + low * sine;
        if (query) {
            to[low_at] = a, to[low_at + half] = b;
        } else {
            cache[low_at] = float_to_half(a), cache[low_at + half] = float_to_half(b);
        }
    }
}
#endif

#ifdef ATTENTION
// Attention of single queries, by online softmax (https://arxiv.org/abs/1805.02867), in parts of the context ("splits") that the
// last block of a query adds up in their order. A short context has fewer parts than the grid has room for. Macros: DIM (of a head), GROUP (query heads of a block, of one key head).
// Grid: (splits, key heads * blocks a key head, rows). q: [rows, heads, DIM], overwritten with the result under the input side
// `in` of the product that reads it, whose blocks divide GROUP * DIM.
#define WARPS 4
#define PER ((DIM + 31) / 32)
#define TOGETHER (PER > 4 ? 2 : 4)
#define NOTHING -1e30f
#define LEAST (WARPS * TOGETHER)  // positions of a part
#define MOST_SPLITS 32

__device__ __forceinline__ void load_part(const u16* from, u32 lane, float (&to)[PER]) {
    if constexpr (DIM % 64 == 0) {
        const u32* words = (const u32*)(from + lane * PER);
        u32 held[(PER + 1) / 2];
        if constexpr (PER % 8 == 0) {
#pragma unroll
            for (u32 j = 0; j < PER / 2; j += 4) *(uint4*)(held + j) = *(const uint4*)(words + j);
        } else if constexpr (PER == 4) {
            *(uint2*)held = *(const uint2*)words;
        } else {
#pragma unroll
            for (u32 j = 0; j < PER / 2; ++j) held[j] = words[j];
        }
#pragma unroll
        for (u32 j = 0; j < PER; ++j) to[j] = half_to_float((u16)(held[j / 2] >> (j % 2 * 16)));
    } else {
#pragma unroll
        for (u32 j = 0; j < PER; ++j) to[j] = lane * PER + j < DIM ? half_to_float(from[lane * PER + j]) : 0;
    }
}

// Writes a block's results, elements `first` and so on of a row, under the input side.
__device__ __forceinline__ void store_results(const float* results, const Side& in, u32 first, float* to) {
    __shared__ float shared[PIECE];
    const Place place(threadIdx.x);
#pragma unroll 1
    for (u32 start = 0; start < GROUP * DIM; start += PIECE) {
        float v[HELD], channels[HELD];
        load_channels(in, first + start, first + GROUP * DIM, place, channels);
        load_piece<true>(results, start, GROUP * DIM, place, v);
        rotate_inputs(in, channels, place, shared, v);
        store_piece<false>(to, start, GROUP * DIM, place, v);
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) attention(const Row* rows, float* q, float* partial, u32* counters, u32 query_heads,
                                                                   u32 kv_heads, u64 layer_start, u64 position_stride, u32 window, float scale,
                                                                   const __grid_constant__ Side in) {
    __shared__ float sums[WARPS][GROUP][DIM], tops[WARPS][GROUP], weights[WARPS][GROUP];
    __shared__ float results[GROUP * DIM];
    __shared__ u32 last;
    const u32 split = blockIdx.x, row = blockIdx.z, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u32 first_head = blockIdx.y * GROUP, kv_head = first_head / (query_heads / kv_heads);
    dependency_release();
    const Row at = rows[row];  // written before the first launch of a step
    dependency_wait();
    const u32 end = at.position + 1, begin = window && end > window ? end - window : 0;
    const u32 splits = min(gridDim.x, (end - begin + LEAST - 1) / LEAST);
    if (split >= splits) return;
    const u32 part = (end - begin + splits - 1) / splits;
    const u32 from = begin + split * part, to = min(from + part, end);
    float query[GROUP][PER], sum[GROUP][PER], top[GROUP], weight[GROUP];
    float* mine = q + ((u64)row * query_heads + first_head) * DIM;
#pragma unroll
    for (u32 g = 0; g < GROUP; ++g) {
        top[g] = NOTHING, weight[g] = 0;
#pragma unroll
        for (u32 j = 0; j < PER; ++j) {
            sum[g][j] = 0;
            query[g][j] = lane * PER + j < DIM ? mine[g * DIM + lane * PER + j] * scale : 0;
        }
    }
    const u16* keys = at.cache + layer_start + kv_head * DIM;
    for (u32 p = from + warp * TOGETHER; p < to; p += WARPS * TOGETHER) {
        float key[TOGETHER][PER], value[TOGETHER][PER];
#pragma unroll
        for (u32 u = 0; u < TOGETHER; ++u) {
            // Past the end the last position is read again and its score left out.
            const u16* place = keys + (u64)min(p + u, to - 1) * position_stride;
            load_part(place, lane, key[u]);
            load_part(place + kv_heads * DIM, lane, value[u]);
        }
#pragma unroll
        for (u32 g = 0; g < GROUP; ++g) {
            float score[TOGETHER], highest = top[g];
#pragma unroll
            for (u32 u = 0; u < TOGETHER; ++u) {
                float dot = 0;
#pragma unroll
                for (u32 j = 0; j < PER; ++j) dot = __fmaf_rn(query[g][j], key[u][j], dot);
                dot = warp_sum(dot);
                score[u] = p + u < to ? dot : NOTHING;
                highest = fmaxf(highest, score[u]);
            }
            const float kept = expf(top[g] - highest);
            top[g] = highest;
            weight[g] *= kept;
#pragma unroll
            for (u32 j = 0; j < PER; ++j) sum[g][j] *= kept;
#pragma unroll
            for (u32 u = 0; u < TOGETHER; ++u) {
                const float e = p + u < to ? expf(score[u] - highest) : 0;
                weight[g] += e;
#pragma unroll
                for (u32 j = 0; j < PER; ++j) sum[g][j] = __fmaf_rn(e, value[u][j], sum[g][j]);
            }
        }
    }
#pragma unroll
    for (u32 g = 0; g < GROUP; ++g) {
        if (lane == 0) tops[warp][g] = top[g], weights[warp][g] = weight[g];
#pragma unroll
        for (u32 j = 0; j < PER; ++j)
            if (lane * PER + j < DIM) sums[warp][g][lane * PER + j] = sum[g][j];
    }
    __syncthreads();
    // [row][head][split][DIM sums, top, weight]
    float* parts = partial + ((u64)row * query_heads + first_head) * splits * (DIM + 2);
    for (u32 i = threadIdx.x; i < GROUP * DIM; i += blockDim.x) {
        const u32 g = i / DIM, d = i % DIM;
        float highest = tops[0][g], total = 0, all = 0;
        for (u32 w = 1; w < WARPS; ++w) highest = fmaxf(highest, tops[w][g]);
        for (u32 w = 0; w < WARPS; ++w) {
            const float e = expf(tops[w][g] - highest);
            total += e * sums[w][g][d], all += e * weights[w][g];
        }
        if (splits == 1) {
            results[i] = total / all;
        } else {
            float* part_of = parts + ((u64)g * splits + split) * (DIM + 2);
            part_of[d] = total;
            if (d == 0) part_of[DIM] = highest, part_of[DIM + 1] = all;
        }
    }
    if (splits == 1) {
        __syncthreads();
        store_results(results, in, first_head * DIM, mine);
        return;
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        u32* counter = counters + row * gridDim.y + blockIdx.y;
        last = atomicAdd(counter, 1) == splits - 1;
        if (last) *counter = 0;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    __shared__ float shares[GROUP][MOST_SPLITS];
    for (u32 g = warp; g < GROUP; g += WARPS) {
        const float* part_of = parts + ((u64)g * splits + lane) * (DIM + 2) + DIM;
        const float mine_top = lane < splits ? __ldcg(part_of) : NOTHING, mine_weight = lane < splits ? __ldcg(part_of + 1) : 0;
        float highest = mine_top;
#pragma unroll
        for (int step = 16; step > 0; step /= 2) highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, step));
        const float e = expf(mine_top - highest);
        shares[g][lane] = e / warp_sum(e * mine_weight);
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < GROUP * DIM; i += blockDim.x) {
        const u32 g = i / DIM, d = i % DIM;
        const float* part_of = parts + (u64)g * splits * (DIM + 2) + d;
        float total = 0;
#pragma unroll 8
        for (u32 s = 0; s < splits; ++s) total += shares[g][s] * __ldcg(part_of + s * (DIM + 2));
        results[i] = total;
    }
    __syncthreads();
    store_results(results, in, first_head * DIM, mine);
}
#endif

// 1: x sigmoid(x), 2: the tanh approximation of GELU (https://arxiv.org/abs/1606.08415).
template <int FUNCTION> __device__ __forceinline__ float activated(float x) {
    if (FUNCTION == 1) return x / (1.0f + expf(-x));
    return 0.5f * x * (1.0f + tanhf(0.7978846f * (x + 0.044715f * x * x * x)));
}

#ifdef GATED
// gate = activated(gate) * up. GATED: which function.
extern "C" __global__ void gated(float* gate, const float* up, u64 count) {
    const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    dependency_release();
    dependency_wait();
    if (i < count) gate[i] = activated<GATED>(gate[i]) * up[i];
}
#endif

#ifdef ROTATED_GATE
// The same between products: the output sides of gate and up, and the input side of the product that reads the result (in
// `gate`). A block a piece.
extern "C" __global__ void __launch_bounds__(THREADS_A_PIECE) rotated_gate(float* gate, const float* up, const __grid_constant__ Side gate_side,
                                                                           const __grid_constant__ Side up_side,
                                                                           const __grid_constant__ Side in, u32 width) {
    __shared__ float shared[PIECE];
    const Place place(threadIdx.x);
    const u32 start = blockIdx.x * PIECE;
    const u64 row = (u64)blockIdx.y * width;
    float gates[HELD], ups[HELD], ins[HELD], v[HELD], u[HELD];
    load_channels(gate_side, start, width, place, gates);
    load_channels(up_side, start, width, place, ups);
    load_channels(in, start, width, place, ins);
    dependency_release();
    dependency_wait();
    load_piece<false>(gate + row, start, width, place, v);
    load_piece<false>(up + row, start, width, place, u);
    rotate_outputs(gate_side, gates, start, width, place, shared, v);
    rotate_outputs(up_side, ups, start, width, place, shared, u);
#pragma unroll
    for (u32 j = 0; j < HELD; ++j) v[j] = activated<ROTATED_GATE>(v[j]) * u[j];
    rotate_inputs(in, ins, place, shared, v);
    store_piece<false>(gate + row, start, width, place, v);
}
#endif

#ifdef DENSE
// y = x W^T + bias for MM rows of x, a warp an output. Macros: W (number type of the weight), MM, VECTOR (weights of a load: 8 or 1).
extern "C" __global__ void dense(const void* weight, const float* bias, const float* x, float* y, u32 inputs, u32 outputs) {
    const u32 output = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    dependency_release();
    dependency_wait();
    if (output >= outputs) return;
    float sum[MM];
#pragma unroll
    for (u32 m = 0; m < MM; ++m) sum[m] = 0;
    for (u32 i = lane * VECTOR; i < inputs; i += 32 * VECTOR) {
        const u64 at = (u64)output * inputs + i;
        float w[VECTOR];
        if (VECTOR == 8 && W != 0) {
            const uint4 words = *(const uint4*)((const u16*)weight + at);
            const u32 all[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
            for (u32 j = 0; j < VECTOR; ++j) {
                const u16 bits = (u16)(all[j / 2 % 4] >> (j % 2 * 16));
                w[j] = W == 1 ? half_to_float(bits) : __uint_as_float((u32)bits << 16);
            }
        } else {
#pragma unroll
            for (u32 j = 0; j < VECTOR; ++j) w[j] = load_number<W>(weight, at + j);
        }
#pragma unroll
        for (u32 m = 0; m < MM; ++m)
#pragma unroll
            for (u32 j = 0; j < VECTOR; ++j) sum[m] = __fmaf_rn(w[j], x[(u64)m * inputs + i + j], sum[m]);
    }
#pragma unroll
    for (u32 m = 0; m < MM; ++m) {
        const float total = warp_sum(sum[m]);
        if (lane == 0) y[(u64)m * outputs + output] = total + (bias ? bias[output] : 0.0f);
    }
}

// A weight as f32.
extern "C" __global__ void widen_weight(const void* weight, float* to, u64 count) {
    const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    dependency_wait();
    if (i < count) to[i] = load_number<W>(weight, i);
}

// Adds `bias` to every row of y.
extern "C" __global__ void add_bias(float* y, const float* bias, u32 outputs, u64 count) {
    const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    dependency_wait();
    if (i < count) y[i] += bias[i % outputs];
}
#endif
