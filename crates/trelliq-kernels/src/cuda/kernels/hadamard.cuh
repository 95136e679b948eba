// Hadamard transforms of pieces of rows, THREADS_A_PIECE threads a piece, HELD (a macro: 4 or 8) elements each. Every block of
// a piece, a power of two up to PIECE, is transformed. Short code counts: it runs once a launch.
#ifndef HELD
#define HELD 4
#endif
#define PIECE 512
#define THREADS_A_PIECE (PIECE / HELD)
#define WARPS_A_PIECE (THREADS_A_PIECE / 32)

// One side of a layer's rotation: channel * H(v) + bias on its outputs, H(channel * v) on its inputs. A side without one
// has blocks of 1 and no channels.
struct Side {
    const float* channels;
    const float* bias;
    u32 block;
    float norm;
};

// A thread's place: its piece, and where its elements lie in the two orders that a transform goes from and to. Sums are spread
// over the piece with neighbours in a warp far apart (`spread`), inputs of products lie in runs of a warp (`run`).
struct Place {
    u32 piece, warp, lane;
    __device__ __forceinline__ Place(u32 thread) : piece(thread / THREADS_A_PIECE), warp(thread % THREADS_A_PIECE / 32), lane(thread % 32) {}
    __device__ __forceinline__ u32 spread(u32 j) const { return 32 * (warp + WARPS_A_PIECE * j) + lane; }
    __device__ __forceinline__ u32 run(u32 j) const { return 32 * (j + HELD * warp) + lane; }
    template <bool RUN> __device__ __forceinline__ u32 at(u32 j) const { return RUN ? run(j) : spread(j); }
};

// Sums and differences of elements that are FIRST, 2 FIRST, ... < END apart and 1, 2, ... registers.
template <int FIRST, int END> __device__ __forceinline__ void add_registers(float (&v)[HELD], u32 block) {
#pragma unroll
    for (int apart = FIRST, step = 1; apart < END && step < HELD; apart *= 2, step *= 2) {
        if (apart >= block) return;
#pragma unroll
        for (int j = 0; j < HELD; ++j) {
            if (j & step) continue;
            const float a = v[j], b = v[j + step];
            v[j] = a + b, v[j + step] = a - b;
        }
    }
}

// H without its factor, from one order to the other. `shared`: PIECE floats of the piece. All threads of the block take part.
template <bool FROM_RUN> __device__ __forceinline__ void hadamard(float (&v)[HELD], u32 block, const Place& place, float* shared) {
    if (FROM_RUN) add_registers<32, PIECE>(v, block);
    else add_registers<32 * WARPS_A_PIECE, PIECE>(v, block);
#pragma unroll
    for (u32 half = 1; half < 32; half *= 2) {
        if (half >= block) break;
#pragma unroll
        for (u32 j = 0; j < HELD; ++j) {
            const float other = __shfl_xor_sync(~0u, v[j], half);
            v[j] = place.lane & half ? other - v[j] : v[j] + other;
        }
    }
    __syncthreads();
#pragma unroll
    for (u32 j = 0; j < HELD; ++j) shared[place.at<FROM_RUN>(j)] = v[j];
    __syncthreads();
#pragma unroll
    for (u32 j = 0; j < HELD; ++j) v[j] = shared[place.at<!FROM_RUN>(j)];
    if (!FROM_RUN) {
        add_registers<32, 32 * WARPS_A_PIECE>(v, block);
    } else {
        // What the runs did not reach: elements 32 HELD apart and more, which are HELD / WARPS_A_PIECE registers apart.
#pragma unroll
        for (int apart = 32 * HELD, step = HELD / WARPS_A_PIECE; apart < PIECE; apart *= 2, step *= 2) {
            if (apart >= block) break;
#pragma unroll
            for (int j = 0; j < HELD; ++j) {
                if (j & step) continue;
                const float a = v[j], b = v[j + step];
                v[j] = a + b, v[j + step] = a - b;
            }
        }
    }
}

// A piece from element `start` of a row of `width`; 0 behind the end.
template <bool RUN> __device__ __forceinline__ void load_piece(const float* row, u32 start, u32 width, const Place& place, float (&to)[HELD]) {
#pragma unroll
    for (u32 j = 0; j < HELD; ++j) {
        const u32 i = start + place.at<RUN>(j);
        to[j] = i < width ? row[i] : 0;
    }
}

template <bool RUN> __device__ __forceinline__ void store_piece(float* row, u32 start, u32 width, const Place& place, const float (&from)[HELD]) {
#pragma unroll
    for (u32 j = 0; j < HELD; ++j) {
        const u32 i = start + place.at<RUN>(j);
        if (i < width) row[i] = from[j];
    }
}

// The factors of a side's channels (with those of H on outputs) at their places: outputs in runs, inputs too.
__device__ __forceinline__ void load_channels(const Side& side, u32 start, u32 width, const Place& place, float (&to)[HELD]) {
#pragma unroll
    for (u32 j = 0; j < HELD; ++j) {
        const u32 i = start + place.run(j);
        to[j] = i >= width ? 0 : side.channels ? side.channels[i] : 1;
    }
}

// From a product's sums, spread, to outputs in runs.
__device__ __forceinline__ void rotate_outputs(const Side& side, const float (&channels)[HELD], u32 start, u32 width, const Place& place,
                                               float* shared, float (&v)[HELD]) {
    hadamard<false>(v, side.block, place, shared);
#pragma unroll
    for (u32 j = 0; j < HELD; ++j) {
        const u32 i = start + place.run(j);
        v[j] = v[j] * side.norm * channels[j] + (side.bias && i < width ? side.bias[i] : 0);
    }
}

// From activations in runs to a product's inputs, spread.
__device__ __forceinline__ void rotate_inputs(const Side& side, const float (&channels)[HELD], const Place& place, float* shared, float (&v)[HELD]) {
#pragma unroll
    for (u32 j = 0; j < HELD; ++j) v[j] *= channels[j];
    hadamard<true>(v, side.block, place, shared);
#pragma unroll
    for (u32 j = 0; j < HELD; ++j) v[j] *= side.norm;
}
