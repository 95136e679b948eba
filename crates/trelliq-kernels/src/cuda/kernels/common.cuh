// Shared by all kernels. Compiled by NVRTC without headers, so conversions are PTX.
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define ONE_MAD_MUL 34038481u
#define ONE_MAD_ADD 76625530u
#define ONE_MAD_DIVISOR 147.800537109375f

// ---- numbers: 0 = f32, 1 = f16, 2 = bf16 ----
template <int T> struct Number;
template <> struct Number<0> { typedef float Stored; };
template <> struct Number<1> { typedef u16 Stored; };
template <> struct Number<2> { typedef u16 Stored; };

__device__ __forceinline__ float half_to_float(u16 h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}

__device__ __forceinline__ u16 float_to_half(float f) {
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}

__device__ __forceinline__ u16 float_to_bfloat(float f) {
    u32 bits = __float_as_uint(f);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return (u16)((bits >> 16) | 64);
    return (u16)((bits + 0x7FFFu + ((bits >> 16) & 1)) >> 16);
}

template <int T> __device__ __forceinline__ float widen(typename Number<T>::Stored v);
template <> __device__ __forceinline__ float widen<0>(float v) { return v; }
template <> __device__ __forceinline__ float widen<1>(u16 v) { return half_to_float(v); }
template <> __device__ __forceinline__ float widen<2>(u16 v) { return __uint_as_float((u32)v << 16); }

template <int T> __device__ __forceinline__ typename Number<T>::Stored narrow(float v);
template <> __device__ __forceinline__ float narrow<0>(float v) { return v; }
template <> __device__ __forceinline__ u16 narrow<1>(float v) { return float_to_half(v); }
template <> __device__ __forceinline__ u16 narrow<2>(float v) { return float_to_bfloat(v); }

template <int T> __device__ __forceinline__ float load_number(const void* p, u64 i) {
    return widen<T>(((const typename Number<T>::Stored*)p)[i]);
}

template <int T> __device__ __forceinline__ void store_number(void* p, u64 i, float v) {
    ((typename Number<T>::Stored*)p)[i] = narrow<T>(v);
}

// Two numbers in a word, `low` first.
template <int T> __device__ __forceinline__ u32 narrow_pair(float low, float high) {
    u32 pair;
    if (T == 1) asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    else asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// ---- codes: 0 = 1mad, 1 = 3inst, 2 = table ----
// y / 147.800537109375 correctly rounded: one Newton correction of the product with the reciprocal
// (checked for all 1021 values of y against the division).
__device__ __forceinline__ float one_mad_value(u32 s) {
    // The byte sum lands in the low bits of the float 2^23, which spares a conversion.
    const u32 sum = __dp4a(s * ONE_MAD_MUL + ONE_MAD_ADD, 0x01010101u, 0x4B000000u);
    float y = __uint_as_float(sum) - 8389118.0f;  // 2^23 + 510
    const float r = 1.0f / ONE_MAD_DIVISOR;
    float q = y * r;
    return __fmaf_rn(__fmaf_rn(-q, ONE_MAD_DIVISOR, y), r, q);
}

__device__ __forceinline__ float three_inst_value(u32 s) {
    u32 x = s * 89226354u + 64248484u;
    u32 h = (x & 0x8FFF8FFFu) ^ 0x3B603B60u;
    return half_to_float((u16)(h >> 16)) + half_to_float((u16)h);
}

template <int C> __device__ __forceinline__ float code_value(u32 s, const float* table) {
    if (C == 0) return one_mad_value(s);
    if (C == 1) return three_inst_value(s);
    return __ldg(table + s);
}

// f32(value) * f32(scale), or that rounded to bf16.
template <int E> __device__ __forceinline__ float weight_value(float value, float scale) {
    float w = __fmul_rn(value, scale);
    return E ? widen<2>(float_to_bfloat(w)) : w;
}

// State of weight t of a block of T weights: the L-bit window at bit (T - 1 - t) K of a ring.
__device__ __forceinline__ u32 state_at(const u32* block, u32 T, u32 t, u32 bits, u32 mask) {
    u32 offset = (T - 1 - t) * bits;
    u32 word = offset >> 5, words = T * bits >> 5;
    u32 next = word + 1 == words ? 0 : word + 1;
    return __funnelshift_r(__ldg(block + word), __ldg(block + next), offset & 31) & mask;
}

// ---- dependent launches: what precedes the wait may overlap the kernel before ----
__device__ __forceinline__ void dependency_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void dependency_release() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- asynchronous copies to shared memory ----
__device__ __forceinline__ void copy16(u32 shared_to, const void* from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared_to), "l"(from) : "memory");
}

__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int N> __device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// ---- tensor-core products ----
// d += a b: a 16 x 32 unsigned bytes, b 32 x 8 signed bytes.
__device__ __forceinline__ void mma_u8s8(int (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
