// The functions of CUDA that need no other thread: atomics, which are plain here because threads run one at a time,
// arithmetic, and the bits of numbers. Part of shim.h.
#pragma once

template <class T>
inline T __ldg(const T* p) { return *p; }

// ---- atomics: the old value is returned, the new one stored

template <class T, class U>
inline T atomicAdd(T* p, U value) { T old = *p; *p = (T)(old + value); return old; }
template <class T, class U>
inline T atomicSub(T* p, U value) { T old = *p; *p = (T)(old - value); return old; }
template <class T, class U>
inline T atomicExch(T* p, U value) { T old = *p; *p = (T)value; return old; }
template <class T, class U>
inline T atomicMax(T* p, U value) { T old = *p; if (old < (T)value) *p = (T)value; return old; }
template <class T, class U>
inline T atomicMin(T* p, U value) { T old = *p; if ((T)value < old) *p = (T)value; return old; }
template <class T, class U>
inline T atomicAnd(T* p, U value) { T old = *p; *p = old & (T)value; return old; }
template <class T, class U>
inline T atomicOr(T* p, U value) { T old = *p; *p = old | (T)value; return old; }
template <class T, class U>
inline T atomicXor(T* p, U value) { T old = *p; *p = old ^ (T)value; return old; }
template <class T, class U, class V>
inline T atomicCAS(T* p, U expected, V value) { T old = *p; if (old == (T)expected) *p = (T)value; return old; }

// ---- arithmetic

template <class A, class B>
using Common = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>, std::common_type_t<A, B>>;
template <class A, class B>
constexpr Common<A, B> min(A a, B b) { using T = Common<A, B>; return (T)b < (T)a ? (T)b : (T)a; }
template <class A, class B>
constexpr Common<A, B> max(A a, B b) { using T = Common<A, B>; return (T)a < (T)b ? (T)b : (T)a; }

inline double rsqrt(double x) { return 1 / sqrt(x); }
inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline float rsqrt(float x) { return rsqrtf(x); }
inline float __frsqrt_rn(float x) { return rsqrtf(x); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __fdividef(float a, float b) { return a / b; }

// ---- the bits of numbers

namespace hostcuda {
template <class To, class From>
inline To bits_as(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  std::memcpy(&result, &x, sizeof result);
  return result;
}
}  // namespace hostcuda

inline float __int_as_float(int x) { return hostcuda::bits_as<float>(x); }
inline int __float_as_int(float x) { return hostcuda::bits_as<int>(x); }
inline float __uint_as_float(unsigned x) { return hostcuda::bits_as<float>(x); }
inline unsigned __float_as_uint(float x) { return hostcuda::bits_as<unsigned>(x); }
inline double __longlong_as_double(long long x) { return hostcuda::bits_as<double>(x); }
inline long long __double_as_longlong(double x) { return hostcuda::bits_as<long long>(x); }
inline int __double2hiint(double x) { return (int)(__double_as_longlong(x) >> 32); }
inline int __double2loint(double x) { return (int)__double_as_longlong(x); }
inline double __hiloint2double(int high, int low) {
  return __longlong_as_double(((long long)high << 32) | (unsigned)low);
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
