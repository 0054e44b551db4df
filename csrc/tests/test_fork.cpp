// A process that forks while its tables are in use: parent and child both go on.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "check.h"
#include "pool.h"

using namespace hedgerow;

int main() {
  set_thread_count(2);
  Table table = sgd_table(4);
  const std::vector<i64> ids = random_ids(20000, 1);
  const std::vector<float> rows = ones(ids.size() * 4, 2);
  std::vector<float> out(ids.size() * 4);
  table.assign(ids.data(), ids.size(), rows.data(), 1);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    while (!stop) table.assign(ids.data(), ids.size(), rows.data(), 1);
  });
  for (int i = 0; i < 10; ++i) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      table.lookup(ids.data(), ids.size(), Missing::zeros, 0, out.data(), OutputMemory::fresh);
      for (float value : out) CHECK(value == 2);
      table.assign(ids.data(), ids.size(), ones(out.size(), 9).data(), 2);
      CHECK(table.size() == ids.size());
      _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    table.lookup(ids.data(), ids.size(), Missing::zeros, 0, out.data(), OutputMemory::fresh);
    for (float value : out) CHECK(value == 2);
  }
  stop = true;
  writer.join();
  return 0;
}
