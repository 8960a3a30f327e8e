// Barriers, and the functions by which the threads of a warp show each other values. Part of shim.h.
//
// Masks are not looked at: all threads of a warp that are left must take part, and a warp in which they do not is
// reported as one that waits forever.
#pragma once

namespace hostcuda {

template <class T>
inline void show(T value) {
  static_assert(sizeof(T) <= 8, "only values of up to 8 bytes are shuffled");
  std::memset(&exchange[thread_number()], 0, 8);
  std::memcpy(&exchange[thread_number()], &value, sizeof(T));
  wait(AT_WARP_BARRIER);
}
template <class T>
inline T shuffle(T value, int from) {
  T result;
  show(value);
  std::memcpy(&result, &exchange[thread_number() / 32 * 32 + from], sizeof(T));
  wait(AT_WARP_BARRIER);
  return result;
}
inline unsigned ballot(bool vote) {
  unsigned result = 0, first = thread_number() / 32 * 32;
  show<uint64_t>(vote);
  for (unsigned i = 0; i < 32; i++)
    if (first + i < blockDim.x * blockDim.y * blockDim.z && exchange[first + i] == 1) result |= 1u << i;
  wait(AT_WARP_BARRIER);
  return result;
}

}  // namespace hostcuda

inline void __syncthreads() { hostcuda::wait(hostcuda::AT_BLOCK_BARRIER); }
inline void __syncwarp(unsigned = ~0u) { hostcuda::wait(hostcuda::AT_WARP_BARRIER); }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __trap() { throw "it called __trap()"; }

template <class T>
inline T __shfl_sync(unsigned, T value, int from, int width = 32) {
  return hostcuda::shuffle(value, hostcuda::lane() / width * width + from % width);
}
template <class T>
inline T __shfl_xor_sync(unsigned, T value, int mask, int width = 32) {
  int own = hostcuda::lane(), from = own ^ mask;
  return hostcuda::shuffle(value, from / width > own / width ? own : from);
}
template <class T>
inline T __shfl_down_sync(unsigned, T value, unsigned delta, int width = 32) {
  int own = hostcuda::lane();
  return hostcuda::shuffle(value, own % width + (int)delta < width ? own + (int)delta : own);
}
template <class T>
inline T __shfl_up_sync(unsigned, T value, unsigned delta, int width = 32) {
  int own = hostcuda::lane();
  return hostcuda::shuffle(value, own % width >= (int)delta ? own - (int)delta : own);
}
inline unsigned __ballot_sync(unsigned, int vote) { return hostcuda::ballot(vote); }
inline int __any_sync(unsigned, int vote) { return hostcuda::ballot(vote) != 0; }
inline int __all_sync(unsigned, int vote) { return hostcuda::ballot(!vote) == 0; }
