// Worker threads, the fork gate and the handlers that renew both in a forked child.
#include "pool.h"

#include <pthread.h>

#if defined(__linux__)
#include <sched.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "rwlock.h"

namespace hedgerow {
namespace {

int usable_cpus() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
  return std::max(1u, std::thread::hardware_concurrency());
}

thread_local int calls = 0;  // that this thread is in, one within the other: the first has the gate
thread_local bool runs_alone = false;
thread_local bool in_background = false;

struct Job {
  detail::TaskFunction function = nullptr;
  void* context = nullptr;
  i64 tasks = 0;
  std::atomic<i64> next{0};

  void work() {
    const RunAlone within(true);  // a task that waited for the pool would wait for itself
    for (i64 task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;)
      function(context, task);
  }
};

class Pool {
 public:
  explicit Pool(int threads) {
    workers_.reserve(u64(threads));
    try {
      for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { serve(); });
    } catch (const std::system_error&) {
      // The system gives no more threads: fewer do the same work.
    }
  }

  ~Pool() {
    stopping_.store(true);
    generation_.fetch_add(1);
    generation_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  // False when another caller has the pool, unless that one is in the background and soon lets go.
  bool try_run(i64 tasks, detail::TaskFunction function, void* context) {
    if (workers_.empty()) return false;
    if (!in_use_.try_lock()) {
      if (!in_background_.load(std::memory_order_relaxed)) return false;
      wanted_.fetch_add(1, std::memory_order_relaxed);
      const bool ours = take_soon();
      wanted_.fetch_sub(1, std::memory_order_relaxed);
      if (!ours) return false;
    }
    const std::lock_guard hold(in_use_, std::adopt_lock);
    run(0, tasks, function, context);
    return true;
  }

  // A few tasks at a time while nobody else wants the pool; alone, one by one, while somebody does.
  bool run_in_background(i64 tasks, detail::TaskFunction function, void* context) {
    const i64 few = kFewTasks * i64(workers_.size() + 1);
    for (i64 first = 0; first < tasks;) {
      if (wanted_.load(std::memory_order_relaxed) != 0 || !in_use_.try_lock()) {
        const RunAlone within(true);
        function(context, first++);
        continue;
      }
      const std::lock_guard hold(in_use_, std::adopt_lock);
      const i64 end = std::min(first + few, tasks);
      in_background_.store(true, std::memory_order_relaxed);
      run(first, end, function, context);
      in_background_.store(false, std::memory_order_relaxed);
      first = end;
    }
    return true;
  }

 private:
  static constexpr int kSpins = 4000;  // tens of microseconds: less than a wake-up costs
  static constexpr i64 kFewTasks = 2;  // of each thread
  static constexpr std::chrono::milliseconds kPatience{2};
  static constexpr u32 kOpen = u32(1) << 31;

  // Waits as long as a few tasks take, and no longer: one of them may wait for what we hold.
  bool take_soon() {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    do {
      for (int spins = 0; spins < kSpins / 40; ++spins) cpu_relax();
      if (in_use_.try_lock()) return true;
      std::this_thread::yield();
    } while (std::chrono::steady_clock::now() < end);
    return false;
  }

  // Tasks first .. end - 1; the caller has the pool.
  void run(i64 first, i64 end, detail::TaskFunction function, void* context) {
    job_.function = function;
    job_.context = context;
    job_.tasks = end;
    job_.next.store(first, std::memory_order_relaxed);
    joined_.store(kOpen, std::memory_order_release);
    generation_.fetch_add(1, std::memory_order_release);
    generation_.notify_all();
    job_.work();
    // Nobody can join any more, and who has joined is waited for. A worker that has not woken up by
    // now is not: on a machine that others keep busy that could take longer than all the work.
    u32 left = joined_.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen;
    for (int spins = 0; left != 0; ++spins) {
      if (spins < kSpins) {
        cpu_relax();
      } else {
        joined_.wait(left, std::memory_order_acquire);
      }
      left = joined_.load(std::memory_order_acquire);
    }
  }

  // Whether the job could still be joined: then it stays as it is until `leave`.
  bool join() {
    u32 now = joined_.load(std::memory_order_acquire);
    while ((now & kOpen) != 0)
      if (joined_.compare_exchange_weak(now, now + 1, std::memory_order_acq_rel)) return true;
    return false;
  }

  void leave() {
    if (joined_.fetch_sub(1, std::memory_order_acq_rel) == 1) joined_.notify_all();
  }

  void serve() {
    u32 seen = 0;
    for (;;) {
      for (int i = 0; i < kSpins && generation_.load(std::memory_order_relaxed) == seen; ++i)
        cpu_relax();
      generation_.wait(seen, std::memory_order_acquire);
      seen = generation_.load(std::memory_order_acquire);
      if (stopping_.load()) return;
      if (!join()) continue;
      ++calls;  // of the caller, who stays in it until this is done
      job_.work();
      --calls;
      leave();
    }
  }

  std::mutex in_use_;
  std::atomic<bool> in_background_{false};  // whoever has it
  std::atomic<int> wanted_{0};              // by so many, while it is
  Job job_;
  std::atomic<u32> joined_{0};  // workers in the job, and kOpen while more may join
  std::atomic<u32> generation_{0};
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> workers_;
};

// Counts running calls; while it is closed, new ones wait.
class Gate {
 public:
  void enter() {
    for (;;) {
      closed_.wait(true, std::memory_order_seq_cst);
      running_.fetch_add(1, std::memory_order_seq_cst);
      if (!closed_.load(std::memory_order_seq_cst)) return;
      leave();
    }
  }

  void leave() {
    if (running_.fetch_sub(1, std::memory_order_seq_cst) == 1 &&
        closed_.load(std::memory_order_seq_cst))
      running_.notify_all();
  }

  void close() {
    closed_.store(true, std::memory_order_seq_cst);
    for (int now; (now = running_.load(std::memory_order_seq_cst)) != 0;) running_.wait(now);
  }

  void open() {
    closed_.store(false, std::memory_order_seq_cst);
    closed_.notify_all();
  }

 private:
  std::atomic<int> running_{0};
  std::atomic<bool> closed_{false};
};

// Process-wide, and never destroyed: worker threads may outlive static destruction.
struct Process {
  Gate gate;
  std::mutex closing;  // held while the gate is closed: one fork or change of threads at a time
  std::mutex
      starting;  // guards the creation of `pool`, inside calls; never taken with the gate closed
  std::atomic<Pool*> pool{nullptr};
  std::atomic<int> threads{usable_cpus()};

  Process() {
    pthread_atfork([] { process().before_fork(); }, [] { process().after_fork_in_parent(); },
                   [] { process().after_fork_in_child(); });
  }

  static Process& process() {
    static Process* const only = new Process;
    return *only;
  }

  Pool& running_pool() {
    Pool* now = pool.load(std::memory_order_acquire);
    if (now != nullptr) return *now;
    const std::lock_guard hold(starting);
    now = pool.load(std::memory_order_acquire);
    if (now == nullptr) pool.store(now = new Pool(threads.load()), std::memory_order_release);
    return *now;
  }

  void before_fork() {
    closing.lock();
    gate.close();
  }
  void after_fork_in_parent() {
    gate.open();
    closing.unlock();
  }
  // The child has none of the pool's threads: forget the pool (its memory is shared with the parent
  // until written, so leaving it costs nothing) and start another at the next call.
  void after_fork_in_child() {
    pool.store(nullptr);
    gate.open();
    closing.unlock();
  }
};

}  // namespace

int thread_count() { return Process::process().threads.load(); }

void set_thread_count(int threads) {
  if (threads < 1 || threads > 1024)
    throw std::invalid_argument("threads is " + std::to_string(threads) +
                                "; it must lie in 1..1024");
  Process& process = Process::process();
  const std::lock_guard hold(process.closing);
  process.gate.close();  // no call may hold the old pool
  delete process.pool.exchange(nullptr);
  process.threads.store(threads);
  process.gate.open();
}

CallScope::CallScope() {
  if (calls++ == 0) Process::process().gate.enter();
}
CallScope::~CallScope() {
  if (--calls == 0) Process::process().gate.leave();
}

RunAlone::RunAlone(bool alone) : before_(runs_alone) { runs_alone = before_ || alone; }
RunAlone::~RunAlone() { runs_alone = before_; }

InBackground::InBackground() : before_(in_background) { in_background = true; }
InBackground::~InBackground() { in_background = before_; }

void detail::run_tasks(i64 tasks, TaskFunction function, void* context) {
  if (tasks > 1 && !runs_alone) {
    Pool& pool = Process::process().running_pool();
    const bool done = in_background ? pool.run_in_background(tasks, function, context)
                                    : pool.try_run(tasks, function, context);
    if (done) return;
  }
  for (i64 task = 0; task < tasks; ++task) function(context, task);
}

}  // namespace hedgerow
