#include "tf_ops/transport/shm/shm.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace hvd {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

Status SystemError(const std::string& what) {
  return Status::Internal(what + " failed: " + std::strerror(errno));
}

// Closes its descriptor.
class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() {
    if (fd_ >= 0) close(fd_);
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

}  // namespace

struct ShmTransport::Mapping {
  void* memory = MAP_FAILED;
  size_t num_bytes = 0;

  Status Map(int fd, size_t bytes) {
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) return SystemError("mmap of the shared memory");
    num_bytes = bytes;
    return Status::Ok();
  }
  Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (memory != MAP_FAILED) munmap(memory, num_bytes);
  }
};

Status ShmTransport::CreateSegment(int size, ShmSegment* segment) {
  if (size < 1) return Status::InvalidArgument("`size` must be at least 1");
  std::string token(kTokenBytes, '\0');
  if (getrandom(token.data(), kTokenBytes, 0) !=
      static_cast<ssize_t>(kTokenBytes)) {
    return SystemError("getrandom");
  }
  Fd fd(memfd_create("hvd_keras", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd.get() < 0) return SystemError("memfd_create");
  const size_t num_bytes = RegionView::Bytes(size);
  if (ftruncate(fd.get(), static_cast<off_t>(num_bytes)) != 0) {
    return SystemError("ftruncate of the shared memory");
  }
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return SystemError("sealing the shared memory");
  }
  Mapping mapping;
  HVD_RETURN_IF_ERROR(mapping.Map(fd.get(), num_bytes));
  RegionView(mapping.memory).Initialize(size, token);
  segment->pid = getpid();
  segment->fd = fd.release();
  segment->token = std::move(token);
  return Status::Ok();
}

Status ShmTransport::Attach(const ShmSegment& segment, int rank,
                            const std::vector<pid_t>& pids,
                            std::unique_ptr<ShmTransport>* transport) {
  const int size = static_cast<int>(pids.size());
  const std::string path = "/proc/" + std::to_string(segment.pid) + "/fd/" +
                           std::to_string(segment.fd);
  Fd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (fd.get() < 0) return SystemError("opening " + path);
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return SystemError("fstat of " + path);
  const size_t num_bytes = RegionView::Bytes(size);
  // The seals promise that nobody can shrink it under our feet.
  if (static_cast<size_t>(info.st_size) != num_bytes ||
      fcntl(fd.get(), F_GET_SEALS) != kSeals) {
    return Status::Internal(path + " is not the shared memory of this job");
  }
  auto mapping = std::make_unique<Mapping>();
  HVD_RETURN_IF_ERROR(mapping->Map(fd.get(), num_bytes));
  if (!RegionView(mapping->memory).Matches(size, segment.token)) {
    return Status::Internal(path + " is the shared memory of another job");
  }
  transport->reset(new ShmTransport(std::move(mapping), rank));
  return (*transport)->StartWatching(pids);
}

ShmTransport::ShmTransport(std::unique_ptr<Mapping> mapping, int rank)
    : Transport(RegionView(mapping->memory), rank),
      mapping_(std::move(mapping)) {}

ShmTransport::~ShmTransport() {
  if (watcher_.joinable()) {
    const uint64_t one = 1;
    // An eventfd write of 1 cannot fall short; a failure is not curable here.
    if (write(stop_fd_, &one, sizeof(one)) == sizeof(one)) watcher_.join();
  }
  for (int fd : pidfds_) {
    if (fd >= 0) close(fd);
  }
  if (stop_fd_ >= 0) close(stop_fd_);
}

Status ShmTransport::StartWatching(const std::vector<pid_t>& pids) {
  pidfds_.assign(pids.size(), -1);
  for (size_t peer = 0; peer < pids.size(); ++peer) {
    const std::string who = "rank " + std::to_string(peer) + " (pid " +
                            std::to_string(pids[peer]) + ")";
    SetLabel(static_cast<int>(peer), who);
    if (static_cast<int>(peer) == rank()) continue;
    pidfds_[peer] = static_cast<int>(syscall(SYS_pidfd_open, pids[peer], 0));
    if (pidfds_[peer] >= 0) continue;
    if (errno == ESRCH) return Status::PeerLost(who + " died during init");
    return SystemError("pidfd_open of " + who);
  }
  stop_fd_ = eventfd(0, EFD_CLOEXEC);
  if (stop_fd_ < 0) return SystemError("eventfd");
  watcher_ = std::thread([this] { Watch(); });
  return Status::Ok();
}

void ShmTransport::Watch() {
  std::vector<pollfd> polled;
  for (int fd : pidfds_) polled.push_back(pollfd{fd, POLLIN, 0});
  polled.push_back(pollfd{stop_fd_, POLLIN, 0});
  while (true) {
    if (poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) return;
    if (polled.back().revents != 0) return;
    for (size_t peer = 0; peer + 1 < polled.size(); ++peer) {
      if (polled[peer].fd < 0 || polled[peer].revents == 0) continue;
      MarkDead(static_cast<int>(peer));
      polled[peer].fd = -1;  // poll() passes over it from now on
    }
  }
}

}  // namespace hvd
