// Growth of the file, the hand that gives pages back, and what the system is asked for.
#include "row_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__linux__)
#include <linux/magic.h>
#include <sys/vfs.h>
#endif

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "pool.h"

namespace hedgerow {
namespace {

constexpr u64 kSpareFrac = 8;  // an eighth of the budget is given back at once: few, large sweeps
constexpr u64 kRuns = 1024;    // of pages that are written at once

int page_shift() { return std::countr_zero(u64(sysconf(_SC_PAGESIZE))); }

#if defined(__linux__)

// Whether `write_range` writes what it is told. A file of overlayfs has no pages of its own: to
// write a part of it is to write nothing.
bool writes_parts(int fd) {
  struct statfs system;
  return fstatfs(fd, &system) != 0 || u64(system.f_type) != OVERLAYFS_SUPER_MAGIC;
}

// Writes the pages of a part of the file and waits for them. Unlike msync it leaves out the
// journal. 0, or -1 with errno.
int write_range(int fd, u64 from, u64 bytes) {
  constexpr unsigned kWriteAndWait =
      SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  return sync_file_range(fd, off64_t(from), off64_t(bytes), kWriteAndWait);
}

// Takes disk blocks for a part of the file. 0, or an error number.
int take_blocks(int fd, u64 from, u64 bytes) {
  return posix_fallocate(fd, off_t(from), off_t(bytes));
}

// Tells the system that a part of the file is read soon, or not any more.
void will_read(int fd, u64 from, u64 bytes) {
  posix_fadvise(fd, off_t(from), off_t(bytes), POSIX_FADV_WILLNEED);
}
void will_not_read(int fd, u64 from, u64 bytes) {
  posix_fadvise(fd, off_t(from), off_t(bytes), POSIX_FADV_DONTNEED);
}

#else

bool writes_parts(int) { return false; }

int write_range(int, u64, u64) { return -1; }  // never called: no part is written this way

int take_blocks(int fd, u64 from, u64 bytes) {
#if defined(F_PREALLOCATE)
  // Blocks behind those that the file has; they count once the file is as long.
  fstore_t blocks = {F_ALLOCATEALL, F_PEOFPOSMODE, 0, off_t(bytes), 0};
  if (fcntl(fd, F_PREALLOCATE, &blocks) == -1) return errno;
#endif
  return ftruncate(fd, off_t(from + bytes)) == 0 ? 0 : errno;
}

void will_read(int fd, u64 from, u64 bytes) {
#if defined(F_RDADVISE)
  radvisory part = {off_t(from), int(bytes)};
  fcntl(fd, F_RDADVISE, &part);
#else
  (void)fd, (void)from, (void)bytes;
#endif
}

void will_not_read(int, u64, u64) {}  // msync and madvise are all that there is

#endif

// What mincore writes for each page.
#if defined(__linux__)
using PageFlags = unsigned char;
#else
using PageFlags = char;
#endif

}  // namespace

RowFile::RowFile(int fd, std::string folder, u64 resident_bytes)
    : fd_(fd),
      folder_(std::move(folder)),
      budget_bytes_(resident_bytes),
      page_shift_(page_shift()),
      budget_pages_(resident_bytes >> page_shift_),
      writes_parts_(writes_parts(fd)),
      process_(getpid()) {}

RowFile::~RowFile() {
  clear();
  close(fd_);
}

bool RowFile::is_mine() const { return process_ == getpid(); }

void RowFile::start(u64 chunk_bytes, u64 most_chunks) {
  if (marks_ != nullptr) throw std::invalid_argument("a file of rows serves one table");
  chunk_pages_ = ((chunk_bytes - 1) >> page_shift_) + 1;
  chunk_bytes_ = chunk_pages_ << page_shift_;
  directory_ = Block(most_chunks * sizeof(*marks_), PageSize::small);
  marks_ = reinterpret_cast<std::atomic<u8>**>(directory_.data());
}

// Disk blocks are taken now: a full disk met by a page that is written would end the process.
u8* RowFile::add_chunk() {
  const std::lock_guard hold(mutex_);
  const u64 from = chunks_.size() * chunk_bytes_;
  const auto refuse = [&](int error) {
    // Also gives back what a failed reservation may have taken.
    if (ftruncate(fd_, off_t(from)) != 0) failure_ = errno;
    return NoRoomInFile(chunk_bytes_, folder_, std::strerror(error));
  };
  int error = EINTR;
  while (error == EINTR) error = take_blocks(fd_, from, chunk_bytes_);
  if (error != 0) throw refuse(error);
  auto marks = std::make_unique<std::atomic<u8>[]>(chunk_pages_);
  chunks_.reserve(chunks_.size() + 1);
  chunk_marks_.reserve(chunks_.size() + 1);
  void* const data =
      mmap(nullptr, chunk_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, off_t(from));
  if (data == MAP_FAILED) throw refuse(errno);
  madvise(data, chunk_bytes_, MADV_RANDOM);  // rows of neighbours are no better guess than others
  marks_[chunks_.size()] = marks.get();
  chunk_marks_.push_back(std::move(marks));
  chunks_.push_back(static_cast<u8*>(data));
  return chunks_.back();
}

// A forked child unmaps its view; the file is its parent's.
void RowFile::clear() {
  const std::lock_guard hold(mutex_);
  for (u8* chunk : chunks_) munmap(chunk, chunk_bytes_);
  if (!chunks_.empty() && is_mine() && ftruncate(fd_, 0) != 0) failure_ = errno;
  chunks_.clear();
  chunk_marks_.clear();
  resident_pages_ = 0;
  hand_ = 0;
}

void RowFile::swap(RowFile& other) {
  const std::scoped_lock hold(mutex_, other.mutex_);
  std::swap(fd_, other.fd_);
  std::swap(folder_, other.folder_);
  std::swap(writes_parts_, other.writes_parts_);
  std::swap(directory_, other.directory_);
  std::swap(marks_, other.marks_);
  resident_pages_ = other.resident_pages_.exchange(resident_pages_);
  failure_ = other.failure_.exchange(failure_);
  std::swap(chunks_, other.chunks_);
  std::swap(chunk_marks_, other.chunk_marks_);
  std::swap(hand_, other.hand_);
}

void RowFile::check() const {
  if (!is_mine())
    throw UnusableRows(
        "rows of this table lie in a file that belongs to the process which made the table, and "
        "this one was forked from it. Make tables with rows in a file after the fork");
  if (failure_ != 0)
    throw UnusableRows("rows could not be written to their file in " + folder_ + " (" +
                       std::strerror(failure_) +
                       "), some may be lost. Load the last checkpoint into a new table");
}

// The read begins here and goes on while the caller turns to other rows.
void RowFile::arrive(u64 chunk, u64 page) {
  if (marks_[chunk][page].exchange(kUsed, std::memory_order_relaxed) != kAway) return;
  resident_pages_.fetch_add(1, std::memory_order_relaxed);
  will_read(fd_, place(chunk, page), u64(1) << page_shift_);
}

void RowFile::give_back() {
  const std::lock_guard hold(mutex_);
  if (resident_pages_ <= budget_pages_) return;  // another thread did it
  const u64 keep = budget_pages_ - budget_pages_ / kSpareFrac;
  // Twice round, the first time to find out what is used: others may use pages all the time.
  u64 left = 2 * chunks_.size() * chunk_pages_;
  for (u64 now; left != 0 && failure_ == 0 && (now = resident_pages_) > keep;) {
    if (hand_ >= chunks_.size() * chunk_pages_) hand_ = 0;
    const u64 chunk = hand_ / chunk_pages_, from = hand_ % chunk_pages_;
    const u64 seen = sweep(chunk, from, now - keep);
    hand_ += seen;
    left -= std::min(left, seen);
  }
}

// From page `from` to the end of the chunk, or until `most` pages leave; says how many it saw. They
// are written together, then let go run by run. A run goes on over pages that are away: that costs
// nothing, and one that came back unnoticed leaves, too.
u64 RowFile::sweep(u64 chunk, u64 from, u64 most) {
  std::atomic<u8>* const marks = marks_[chunk];
  std::pair<u64, u64> runs[kRuns];  // first page, one past the last that leaves
  u64 run_count = 0, page = from, leaving = 0;
  bool joins = false;
  for (; page < chunk_pages_ && leaving < most; ++page) {
    const u8 mark = marks[page].load(std::memory_order_relaxed);
    if (mark == kAway) continue;
    if (mark == kUsed) {
      marks[page].store(kHere, std::memory_order_relaxed);
      joins = false;
      continue;
    }
    if (!joins && run_count == kRuns) break;
    if (!joins) runs[run_count++].first = page;
    runs[run_count - 1].second = page + 1;
    joins = true;
    ++leaving;
  }
  if (run_count != 0 && write_pages(chunk, runs[0].first, runs[run_count - 1].second))
    for (u64 i = 0; i < run_count; ++i) drop_pages(chunk, runs[i].first, runs[i].second);
  return page - from;
}

bool RowFile::write_pages(u64 chunk, u64 first, u64 end) {
  const u64 bytes = (end - first) << page_shift_;
  const auto write = [&] {
    if (writes_parts_) return write_range(fd_, place(chunk, first), bytes);
    return msync(chunks_[chunk] + (first << page_shift_), bytes, MS_SYNC);
  };
  int failed = write();
  while (failed != 0 && errno == EINTR) failed = write();  // a signal loses no row
  if (failed != 0) failure_ = errno;
  return failed == 0;
}

void RowFile::drop_pages(u64 chunk, u64 first, u64 end) {
  std::atomic<u8>* const marks = marks_[chunk];
  u64 left = 0;
  for (u64 page = first; page < end; ++page) {
    u8 here = kHere;
    left += marks[page].compare_exchange_strong(here, kAway, std::memory_order_relaxed);
  }
  resident_pages_.fetch_sub(left, std::memory_order_relaxed);
  const u64 bytes = (end - first) << page_shift_;
  madvise(chunks_[chunk] + (first << page_shift_), bytes, MADV_DONTNEED);
  will_not_read(fd_, place(chunk, first), bytes);
}

u64 RowFile::file_bytes() const {
  const CallScope scope;
  const std::lock_guard hold(mutex_);
  return chunks_.size() * chunk_bytes_;
}

u64 RowFile::measured_bytes() const {
  const CallScope scope;
  const std::lock_guard hold(mutex_);
  std::vector<PageFlags> present(chunk_pages_);
  u64 pages = 0;
  for (u8* chunk : chunks_) {
    if (mincore(chunk, chunk_bytes_, present.data()) != 0) continue;
    for (const PageFlags flags : present) pages += flags & 1;
  }
  return pages << page_shift_;
}

}  // namespace hedgerow
