// What the source of a CUDA kernel needs to be plain C++, compiled by g++ and run on the host.
//
// Keywords of CUDA become nothing, built-in variables become variables, and a launch becomes a loop over all blocks and
// their threads. A kernel without barriers runs thread by thread. In one with barriers, every thread is a fiber with a
// stack of its own, which gives way at a barrier; a scheduler goes on with the threads that may run.
//
// Threads never run at the same time, so atomics are plain. What depends on the order of threads is found by running
// them in different orders instead: see Schedule. All state is `inline`, so there is one copy for all kernels of a
// process, which Python's lock keeps apart.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <math.h>
#include <memory>
#include <setjmp.h>
#include <sys/mman.h>
#include <type_traits>
#include <ucontext.h>
#include <utility>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <vector_types.h>

// ---- the language

#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#undef __global__
#undef __device__
#undef __host__
#undef __forceinline__
#undef __noinline__
#undef __shared__
#undef __constant__
#undef __launch_bounds__
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __constant__ static
#define __launch_bounds__(...)
// One copy for all threads, all of them in one section of the library, so that they can be poisoned before every block.
#define __shared__ static __attribute__((section("hostcuda_shared")))
extern "C" char __start_hostcuda_shared[] __attribute__((weak, visibility("hidden")));
extern "C" char __stop_hostcuda_shared[] __attribute__((weak, visibility("hidden")));

inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;
static const int warpSize = 32;

namespace hostcuda {

constexpr int POISON = 0xFF;  // NaN in every kind of float, -1 in every kind of integer
constexpr unsigned MOST_THREADS = 1024;
constexpr size_t STACK = 256 * 1024, PAGE = 4096;

// ---- threads that wait for each other

enum Schedule {
  TOGETHER,   // the warps go from barrier to barrier in turn
  FORWARDS,   // each warp goes as far as it can before the next one moves, the first warp first
  BACKWARDS,  // the same, with the last warp and its last thread first
};

enum State { READY, AT_WARP_BARRIER, AT_BLOCK_BARRIER, DONE };

// A stack grows downwards, to a page that may not be touched: a thread that needs more dies there.
inline char* new_stack() {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* stack = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (stack == MAP_FAILED) throw "there is no memory for the stacks of its threads";
  mprotect(stack, PAGE, PROT_NONE);
  return (char*)stack;
}
struct FreeStack {
  void operator()(char* stack) const { munmap(stack, STACK); }
};

struct Fiber {
  std::unique_ptr<char[], FreeStack> stack;
  jmp_buf place;  // where it goes on
  uint3 index;
  State state;
};

using Kernel = void (*)(void** parameters);

inline std::vector<Fiber> fibers;  // of the block that runs
inline unsigned running;           // the number of the thread that runs
inline jmp_buf scheduler;
inline bool in_fibers;
inline Kernel kernel;
inline void** parameters;
inline const char* failure;            // why this launch cannot go on
inline char* dynamic_shared;           // what `extern __shared__ T name[]` points at
inline uint64_t exchange[MOST_THREADS];  // what the threads of a warp show each other

inline unsigned thread_number() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
inline int lane() { return thread_number() % 32; }

// Jumps, which unlike swapcontext ask nothing of the operating system.
__attribute__((noinline)) inline void switch_to_scheduler() {
  if (!_setjmp(fibers[running].place)) _longjmp(scheduler, 1);
}
__attribute__((noinline)) inline void switch_to_fiber() {
  if (!_setjmp(scheduler)) _longjmp(fibers[running].place, 1);
}

// Called by a thread at a barrier: the others run until this one may go on.
inline void wait(State barrier) {
  if (!in_fibers) throw "it waits at a barrier, but its source did not look as if it would";
  fibers[running].state = barrier;
  switch_to_scheduler();
  threadIdx = fibers[running].index;
}

// The life of a fiber: one thread after the other, of one block after the other.
inline void run_fiber() {
  for (;;) {
    switch_to_scheduler();
    threadIdx = fibers[running].index;
    try {
      kernel(parameters);
    } catch (const char* reason) {
      failure = reason;
    }
    std::memset(&exchange[running], POISON, sizeof exchange[running]);  // a thread that is gone shows nothing
    fibers[running].state = DONE;
  }
}

// A new fiber goes as far as its first jump back.
__attribute__((noinline)) inline void make_fiber(unsigned number) {
  ucontext_t context;
  running = number;
  fibers[number].stack.reset(new_stack());
  getcontext(&context);
  context.uc_stack.ss_sp = fibers[number].stack.get();
  context.uc_stack.ss_size = STACK;
  makecontext(&context, run_fiber, 0);
  if (!_setjmp(scheduler)) setcontext(&context);
}

inline void start_fibers(unsigned count) {
  fibers.reserve(MOST_THREADS);  // so that none of them ever moves
  while (fibers.size() < count) {
    fibers.emplace_back();
    make_fiber(fibers.size() - 1);
  }
  for (unsigned i = 0; i < count; i++) {
    fibers[i].index.x = i % blockDim.x;
    fibers[i].index.y = i / blockDim.x % blockDim.y;
    fibers[i].index.z = i / (blockDim.x * blockDim.y);
    fibers[i].state = READY;
  }
}

// If all threads in [first, last) that are left wait at this barrier, they may go on.
inline bool open_barrier(State barrier, unsigned first, unsigned last) {
  bool anyone = false;
  for (unsigned i = first; i < last; i++) {
    if (fibers[i].state != barrier && fibers[i].state != DONE) return false;
    anyone |= fibers[i].state == barrier;
  }
  for (unsigned i = first; i < last; i++)
    if (fibers[i].state == barrier) fibers[i].state = READY;
  return anyone;
}

// Every thread of a warp that may run does, until its next barrier. Returns whether anything happened.
inline bool run_warp(unsigned first, unsigned last, Schedule schedule) {
  bool moved = false, again = true;
  while (again && !failure) {
    for (unsigned k = first; k < last; k++) {
      unsigned i = schedule == BACKWARDS ? first + last - 1 - k : k;
      if (fibers[i].state != READY) continue;
      running = i;
      switch_to_fiber();
      moved = true;
    }
    bool opened = open_barrier(AT_WARP_BARRIER, first, last);
    moved |= opened;
    again = opened && schedule != TOGETHER;
  }
  return moved;
}

inline void run_block_in_fibers(Schedule schedule) {
  unsigned count = blockDim.x * blockDim.y * blockDim.z, warps = (count + 31) / 32;
  start_fibers(count);
  std::memset(exchange, POISON, sizeof exchange);
  while (!failure) {
    bool moved = false;
    for (unsigned k = 0; k < warps; k++) {
      unsigned first = (schedule == BACKWARDS ? warps - 1 - k : k) * 32;
      moved |= run_warp(first, std::min(count, first + 32), schedule);
    }
    moved |= open_barrier(AT_BLOCK_BARRIER, 0, count);
    if (std::all_of(fibers.begin(), fibers.begin() + count, [](const Fiber& f) { return f.state == DONE; })) return;
    if (!moved) failure = "some of its threads wait at a barrier that the others do not reach";
  }
  fibers.clear();  // some of them are in the middle of the kernel
}

inline void run_block_in_a_row() {
  for (threadIdx.z = 0; threadIdx.z < blockDim.z; threadIdx.z++)
    for (threadIdx.y = 0; threadIdx.y < blockDim.y; threadIdx.y++)
      for (threadIdx.x = 0; threadIdx.x < blockDim.x; threadIdx.x++) kernel(parameters);
}

// Returns nothing, or why the kernel could not be run. `has_barriers` and `any_grid` are what the compiler knows of it:
// a loop that strides over the grid does the same work on a grid of one thread, in a fraction of the time.
inline const char* launch(Kernel body, bool has_barriers, bool any_grid, const unsigned* grid, const unsigned* block,
                          size_t shared_bytes, void** arguments, int schedule) {
  kernel = body, parameters = arguments, failure = nullptr, in_fibers = has_barriers;
  bool one_thread = any_grid && !has_barriers;
  gridDim = one_thread ? dim3{1, 1, 1} : dim3{grid[0], grid[1], grid[2]};
  blockDim = one_thread ? dim3{1, 1, 1} : dim3{block[0], block[1], block[2]};
  std::vector<char> memory(shared_bytes + 16);
  dynamic_shared = (char*)(((uintptr_t)memory.data() + 15) & ~(uintptr_t)15);
  try {
    for (blockIdx.z = 0; blockIdx.z < gridDim.z; blockIdx.z++)
      for (blockIdx.y = 0; blockIdx.y < gridDim.y; blockIdx.y++)
        for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++) {
          std::memset(memory.data(), POISON, memory.size());
          if (__start_hostcuda_shared)
            std::memset(__start_hostcuda_shared, POISON, __stop_hostcuda_shared - __start_hostcuda_shared);
          if (has_barriers)
            run_block_in_fibers((Schedule)schedule);
          else
            run_block_in_a_row();
          if (failure) return failure;
        }
  } catch (const char* reason) {
    return reason;
  }
  return nullptr;
}

// A kernel gets its parameters as an array of pointers to them, as from the driver.
template <class... A, size_t... I>
inline void call(void (*function)(A...), void** p, std::index_sequence<I...>) {
  function(*(std::decay_t<A>*)p[I]...);
}
template <class... A>
inline void call(void (*function)(A...), void** p) {
  call(function, p, std::index_sequence_for<A...>{});
}

// Bytes of each parameter, up to a zero: a graph keeps copies of them.
template <class... A>
inline const size_t* sizes(void (*)(A...)) {
  static const size_t all[] = {sizeof(std::decay_t<A>)..., 0};
  return all;
}

}  // namespace hostcuda

#define HOSTCUDA_EXPORT(name, has_barriers, any_grid)                                                           \
  static void hostcuda_call_##name(void** p) { hostcuda::call(&::name, p); }                                    \
  extern "C" const char* hostcuda_launch_##name(const unsigned* grid, const unsigned* block, size_t shared,     \
                                                void** p, int schedule) {                                       \
    return hostcuda::launch(hostcuda_call_##name, has_barriers, any_grid, grid, block, shared, p, schedule);    \
  }                                                                                                             \
  extern "C" const size_t* hostcuda_sizes_##name() { return hostcuda::sizes(&::name); }

#include "shim_warps.h"

#include "shim_functions.h"
