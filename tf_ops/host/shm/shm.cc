#include "tf_ops/host/shm/shm.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "tf_ops/common/fd.h"
#include "tf_ops/host/region.h"
#include "tf_ops/host/shm/pidfd_watch.h"
#include "tf_ops/host/shm/system_error.h"

namespace hvd {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// Maps `fd`; `*memory` unmaps at the end.
Status Map(int fd, size_t num_bytes, std::shared_ptr<void>* memory) {
  void* mapped =
      mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) return SystemError("mmap of the shared memory");
  memory->reset(mapped, [num_bytes](void* m) { munmap(m, num_bytes); });
  return Status::Ok();
}

// Maps what another process has made.
Status Open(const ShmSegment& segment, std::shared_ptr<void>* memory) {
  const std::string path = "/proc/" + std::to_string(segment.pid) + "/fd/" +
                           std::to_string(segment.fd);
  Fd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd.is_open()) {
    const Status failure = SystemError("opening " + path);
    return Status::Internal(
        failure.message() +
        ". The ranks must see each other's files in /proc: start them in one "
        "container and as one user, without changes of user or rights "
        "(prctl) before `init()`");
  }
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return SystemError("fstat of " + path);
  const size_t num_bytes = RegionView::Bytes(segment.shape);
  // The seals promise that nobody can shrink it under our feet.
  if (static_cast<size_t>(info.st_size) != num_bytes ||
      fcntl(fd.get(), F_GET_SEALS) != kSeals) {
    return Status::Internal(path + " is not the shared memory of this job");
  }
  HVD_RETURN_IF_ERROR(Map(fd.get(), num_bytes, memory));
  if (!RegionView::Matches(segment.shape, segment.token, memory->get())) {
    return Status::Internal(path + " is the shared memory of another job");
  }
  return Status::Ok();
}

}  // namespace

Status CreateSegment(const RegionShape& shape, ShmSegment* segment) {
  if (shape.size < 1) {
    return Status::InvalidArgument("`size` must be at least 1");
  }
  std::string token(kTokenBytes, '\0');
  if (getrandom(token.data(), kTokenBytes, 0) !=
      static_cast<ssize_t>(kTokenBytes)) {
    return SystemError("getrandom");
  }
  Fd fd(memfd_create("hvd_keras", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.is_open()) return SystemError("memfd_create");
  const size_t num_bytes = RegionView::Bytes(shape);
  if (ftruncate(fd.get(), static_cast<off_t>(num_bytes)) != 0) {
    return SystemError("ftruncate of the shared memory");
  }
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return SystemError("sealing the shared memory");
  }
  std::shared_ptr<void> memory;
  HVD_RETURN_IF_ERROR(Map(fd.get(), num_bytes, &memory));
  RegionView::Initialize(shape, token, memory.get());
  segment->pid = getpid();
  segment->fd = fd.release();
  segment->token = std::move(token);
  segment->shape = shape;
  return Status::Ok();
}

Status AttachSegment(const ShmSegment& segment, int member,
                     const std::vector<pid_t>& pids, uint64_t epoch,
                     std::unique_ptr<HostGroup>* group, const std::string& host,
                     const std::vector<int>& global_ranks) {
  std::shared_ptr<void> memory;
  HVD_RETURN_IF_ERROR(Open(segment, &memory));
  *group = std::make_unique<HostGroup>(std::move(memory), member, epoch);
  if (!global_ranks.empty()) {
    (*group)->membership()->members().SetPlace(host, global_ranks);
  }
  std::unique_ptr<DeathWatch> watch;
  HVD_RETURN_IF_ERROR(PidfdWatch::Start(pids, (*group)->membership(), &watch));
  (*group)->KeepWatch(std::move(watch));
  return Status::Ok();
}

Status AttachAsWire(const ShmSegment& segment, uint64_t epoch,
                    std::unique_ptr<HostGroup>* group) {
  std::shared_ptr<void> memory;
  HVD_RETURN_IF_ERROR(Open(segment, &memory));
  *group =
      std::make_unique<HostGroup>(std::move(memory), segment.shape.size, epoch);
  return Status::Ok();
}

Status AttachSegmentOfSet(const ShmSegment& segment, int member,
                          std::shared_ptr<Membership> job,
                          const std::vector<int>& job_members,
                          std::unique_ptr<HostGroup>* group) {
  std::shared_ptr<void> memory;
  HVD_RETURN_IF_ERROR(Open(segment, &memory));
  *group = std::make_unique<HostGroup>(std::move(memory), member, job->epoch());
  (*group)->membership()->BindToJob(std::move(job), job_members);
  return Status::Ok();
}

}  // namespace hvd
