// Orthonormal Hadamard transforms of blocks along rows. Macros: IN, OUT (number types of the two sides), OUTPUT.
// Input side:  to = H (channel * from). Output side: to = channel * H(from) + bias.
// A thread block transforms `chunk` neighbouring elements of one row (whole Hadamard blocks) in shared memory.
extern "C" __global__ void rotate(const void* from, void* to, const float* channel, const float* bias, u32 dim, u32 block, u32 chunk, float norm) {
    extern __shared__ float shared_floats[];
    const u32 start = blockIdx.x * chunk, count = min(chunk, dim - start);
    const u64 row = (u64)blockIdx.y * dim;
    dependency_wait();
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        float v = load_number<IN>(from, row + start + i);
        if (!OUTPUT && channel) v *= channel[start + i];
        shared_floats[i] = v;
    }
    for (u32 half = 1; half < block; half *= 2) {
        __syncthreads();
        for (u32 i = threadIdx.x; i < count / 2; i += blockDim.x) {
            const u32 a = i / half * 2 * half + i % half;
            const float u = shared_floats[a], v = shared_floats[a + half];
            shared_floats[a] = u + v, shared_floats[a + half] = u - v;
        }
    }
    __syncthreads();
    dependency_release();
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        float v = shared_floats[i] * norm;
        if (OUTPUT) v = v * (channel ? channel[start + i] : 1.0f) + (bias ? bias[start + i] : 0.0f);
        store_number<OUT>(to, row + start + i, v);
    }
}

// The same for blocks of up to PIECE. A block a piece of a row.
extern "C" __global__ void __launch_bounds__(THREADS_A_PIECE) rotate_pieces(const void* from, void* to, const float* channel, const float* bias,
                                                                            u32 dim, u32 block, float norm) {
    __shared__ float shared[PIECE];
    const Place place(threadIdx.x);
    const u32 start = blockIdx.x * PIECE;
    const u64 row = (u64)blockIdx.y * dim;
    const Side side = {channel, bias, block, norm};
    float channels[HELD], v[HELD];
    load_channels(side, start, dim, place, channels);
    dependency_release();
    dependency_wait();
#pragma unroll
    for (u32 j = 0; j < HELD; ++j) {
        const u32 i = start + place.at<!OUTPUT>(j);
        v[j] = i < dim ? load_number<IN>(from, row + i) : 0;
    }
    if (OUTPUT) rotate_outputs(side, channels, start, dim, place, shared, v);
    else rotate_inputs(side, channels, place, shared, v);
#pragma unroll
    for (u32 j = 0; j < HELD; ++j) {
        const u32 i = start + place.at<OUTPUT>(j);
        if (i < dim) store_number<OUT>(to, row + i, v[j]);
    }
}
