// What the two integer kernels share. Macros: K, L, RING, EXPLICIT, X (number type of x and y),
// MM (rows of x that the kernel holds: 1, 2, 4 or 8), TERMS (2 or 3), WARPS, STAGES, BLOCKS (a processor).
#define PAIRS_M (TERMS == 3 ? 2 : 1)            // column pairs a row of x
#define COLUMNS (2 * PAIRS_M * MM)              // columns of the product in use
#define SETS ((COLUMNS + 7) / 8)                // products a weight operand
#define PAIRS (COLUMNS >= 8 ? 4 : COLUMNS / 2)  // column pairs a set
#define THREADS (32 * WARPS)
#define MAX_SEGMENTS 64

struct Params {
    const u32* units;
    const float* scales;  // one a stored row
    const void* x;        // [m, inputs]
    void* y;              // [m, outputs]
    float* partial;       // [block][segment][MM][outputs a group]
    u32* counters;        // one a group, zero between launches
    const u8* terms;      // x as quantize.cu leaves it, where that ran
    const int* totals;
    const float* steps;
    u32 m, inputs, outputs;
    u32 inner;            // units along the inputs, a group
    u32 groups;           // groups of outputs
    u32 chunks;           // parts that the inputs are cut into
    u32 max_segments;     // groups that a block touches at most
};

// Products of one x that run as one launch: part i has the blocks from first[i] on.
#define MOST_PARTS 3
struct Parts {
    Params part[MOST_PARTS];
    u32 first[MOST_PARTS + 1];
};

// `total` things dealt to `parts` in runs that differ by one at most. 32 bits: a 64-bit division takes
// longer than a step of the main loop.
struct Deal {
    u32 quotient, rest;
    __device__ __forceinline__ Deal(u32 total, u32 parts) : quotient(total / parts), rest(total % parts) {}
    __device__ __forceinline__ u32 start(u32 part) const { return part * quotient + min(part, rest); }
    __device__ __forceinline__ u32 owner(u32 thing) const {
        const u32 long_runs = rest * (quotient + 1);
        return thing < long_runs ? thing / (quotient + 1) : rest + (thing - long_runs) / max(quotient, 1);
    }
};

// Counts an arrival at `counter` after everything that the block has written; true for the last of
// `parts`, which then sees what all have written. A barrier must precede and follow.
__device__ __forceinline__ bool arrive(u32* counter, u32 parts) {
    __threadfence();
    const bool last = atomicAdd(counter, 1) == parts - 1;
    __threadfence();
    return last;
}

__device__ __forceinline__ void raise(u32* to, float v) {
    const u32 bits = __reduce_max_sync(~0u, __float_as_uint(fabsf(v)));
    if (threadIdx.x % 32 == 0) atomicMax(to, bits);
}

// The value of one output from its column sums: `pairs` sums less 510 times those of q.
template <int P> __device__ __forceinline__ float combine(const int (&sums)[2 * P]) {
    float v = (float)sums[0] + (float)sums[1] * (1.0f / 254.0f);
    if (P == 2) v += (float)sums[2] * (1.0f / 64516.0f);
    return v;
}
