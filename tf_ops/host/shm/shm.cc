#include "tf_ops/host/shm/shm.h"

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

#include "tf_ops/common/fd.h"

namespace hvd {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

Status SystemError(const std::string& what) {
  return Status::Internal(what + " failed: " + std::strerror(errno));
}

// Maps `fd`; `*memory` unmaps at the end.
Status Map(int fd, size_t num_bytes, std::shared_ptr<void>* memory) {
  void* mapped =
      mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) return SystemError("mmap of the shared memory");
  memory->reset(mapped, [num_bytes](void* m) { munmap(m, num_bytes); });
  return Status::Ok();
}

// Maps what another process has made for `size` ranks.
Status Open(const ShmSegment& segment, int size,
            std::shared_ptr<void>* memory) {
  const std::string path = "/proc/" + std::to_string(segment.pid) + "/fd/" +
                           std::to_string(segment.fd);
  Fd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd.is_open()) return SystemError("opening " + path);
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return SystemError("fstat of " + path);
  const size_t num_bytes = RegionView::Bytes(size);
  // The seals promise that nobody can shrink it under our feet.
  if (static_cast<size_t>(info.st_size) != num_bytes ||
      fcntl(fd.get(), F_GET_SEALS) != kSeals) {
    return Status::Internal(path + " is not the shared memory of this job");
  }
  HVD_RETURN_IF_ERROR(Map(fd.get(), num_bytes, memory));
  if (!RegionView(memory->get()).Matches(size, segment.token)) {
    return Status::Internal(path + " is the shared memory of another job");
  }
  return Status::Ok();
}

}  // namespace

Status ShmTransport::CreateSegment(int size, ShmSegment* segment) {
  if (size < 1) return Status::InvalidArgument("`size` must be at least 1");
  std::string token(kTokenBytes, '\0');
  if (getrandom(token.data(), kTokenBytes, 0) !=
      static_cast<ssize_t>(kTokenBytes)) {
    return SystemError("getrandom");
  }
  Fd fd(memfd_create("hvd_keras", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.is_open()) return SystemError("memfd_create");
  const size_t num_bytes = RegionView::Bytes(size);
  if (ftruncate(fd.get(), static_cast<off_t>(num_bytes)) != 0) {
    return SystemError("ftruncate of the shared memory");
  }
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return SystemError("sealing the shared memory");
  }
  std::shared_ptr<void> memory;
  HVD_RETURN_IF_ERROR(Map(fd.get(), num_bytes, &memory));
  RegionView(memory.get()).Initialize(size, token);
  segment->pid = getpid();
  segment->fd = fd.release();
  segment->token = std::move(token);
  return Status::Ok();
}

Status ShmTransport::Attach(const ShmSegment& segment, int rank,
                            const std::vector<pid_t>& pids,
                            std::unique_ptr<ShmTransport>* transport) {
  std::shared_ptr<void> memory;
  HVD_RETURN_IF_ERROR(Open(segment, static_cast<int>(pids.size()), &memory));
  transport->reset(new ShmTransport(std::move(memory), rank));
  return (*transport)->StartWatching(pids);
}

Status ShmTransport::AttachSet(const ShmSegment& segment, int rank,
                               std::shared_ptr<Transport> job,
                               const std::vector<int>& global_ranks,
                               std::unique_ptr<ShmTransport>* transport) {
  std::shared_ptr<void> memory;
  HVD_RETURN_IF_ERROR(
      Open(segment, static_cast<int>(global_ranks.size()), &memory));
  transport->reset(new ShmTransport(std::move(memory), rank));
  (*transport)->BindToJob(std::move(job), global_ranks);
  return Status::Ok();
}

ShmTransport::~ShmTransport() {
  if (watcher_.joinable()) {
    const uint64_t one = 1;
    // An eventfd write of 1 cannot fall short; a failure is not curable here.
    if (write(stop_fd_.get(), &one, sizeof(one)) == sizeof(one)) {
      watcher_.join();
    }
  }
}

Status ShmTransport::StartWatching(const std::vector<pid_t>& pids) {
  pidfds_.resize(pids.size());
  for (size_t peer = 0; peer < pids.size(); ++peer) {
    const std::string who = "rank " + std::to_string(peer) + " (pid " +
                            std::to_string(pids[peer]) + ")";
    SetLabel(static_cast<int>(peer), who);
    if (static_cast<int>(peer) == rank()) continue;
    pidfds_[peer] =
        Fd(static_cast<int>(syscall(SYS_pidfd_open, pids[peer], 0)));
    if (pidfds_[peer].is_open()) continue;
    if (errno == ESRCH) return Status::PeerLost(who + " died during init");
    return SystemError("pidfd_open of " + who);
  }
  stop_fd_ = Fd(eventfd(0, EFD_CLOEXEC));
  if (!stop_fd_.is_open()) return SystemError("eventfd");
  watcher_ = std::thread([this] { Watch(); });
  return Status::Ok();
}

void ShmTransport::Watch() {
  std::vector<pollfd> polled;
  for (const Fd& fd : pidfds_) polled.push_back(pollfd{fd.get(), POLLIN, 0});
  polled.push_back(pollfd{stop_fd_.get(), POLLIN, 0});
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
