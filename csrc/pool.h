// The process's worker pool, and the gate that lets a fork happen only between calls.
#pragma once

#include <atomic>
#include <exception>
#include <mutex>
#include <type_traits>

#include "bits.h"

namespace hedgerow {

int thread_count();
void set_thread_count(int threads);  // throws std::invalid_argument below 1 or above 1024

// Held by every call into a table. A fork waits for running calls to end, so the child never
// inherits a lock that a thread it does not have would have to release. A call within a call, and a
// task of one on a thread of the pool, is part of it.
class CallScope {
 public:
  CallScope();
  ~CallScope();
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;
};

// While one is held with `alone`, this thread does all of its tasks itself. For work of some
// hundred microseconds: a worker wakes up too late to help, and takes a core from whoever works
// beside us.
class RunAlone {
 public:
  explicit RunAlone(bool alone);
  ~RunAlone();
  RunAlone(const RunAlone&) = delete;
  RunAlone& operator=(const RunAlone&) = delete;

 private:
  const bool before_;
};

// While one is held, this thread's tasks go to the pool a few at a time, and whoever else wants the
// pool gets it before the next few, which this thread does alone meanwhile. For work beside others.
class InBackground {
 public:
  InBackground();
  ~InBackground();
  InBackground(const InBackground&) = delete;
  InBackground& operator=(const InBackground&) = delete;

 private:
  const bool before_;
};

constexpr u64 kAloneIds = 8192;  // calls of fewer ids on one table run alone

namespace detail {
using TaskFunction = void (*)(void* context, i64 task);
void run_tasks(i64 tasks, TaskFunction function, void* context);
}  // namespace detail

// Runs body(0) .. body(tasks - 1), each once, on the calling thread and the pool's. A pool that is
// busy with another thread's call is not waited for (but some milliseconds for one in the
// background): the caller then does all of it. The first exception is rethrown after every started
// task has ended; tasks not yet started are left out. The caller holds a CallScope.
template <class Body>
void parallel_for(i64 tasks, Body&& body) {
  struct Context {
    std::remove_reference_t<Body>& body;
    std::mutex mutex;
    std::exception_ptr failure;
    std::atomic<bool> failed{false};
  } context{body, {}, {}, {}};
  detail::run_tasks(
      tasks,
      [](void* opaque, i64 task) {
        auto& shared = *static_cast<Context*>(opaque);
        if (shared.failed.load(std::memory_order_relaxed)) return;
        try {
          shared.body(task);
        } catch (...) {
          const std::lock_guard hold(shared.mutex);
          if (!shared.failure) shared.failure = std::current_exception();
          shared.failed.store(true, std::memory_order_relaxed);
        }
      },
      &context);
  if (context.failure) std::rethrow_exception(context.failure);
}

}  // namespace hedgerow
