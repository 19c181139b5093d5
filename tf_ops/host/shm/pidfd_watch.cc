#include "tf_ops/host/shm/pidfd_watch.h"

#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "tf_ops/host/shm/system_error.h"

namespace hvd {
namespace {

// How often to look if poll() cannot wait for all processes at once.
constexpr std::chrono::milliseconds kLookInterval{20};

// Sets each `revents`, without waiting. False, and errno, if that fails too.
bool PollEach(std::vector<pollfd>* polled) {
  for (pollfd& one : *polled) {
    if (poll(&one, 1, 0) < 0 && errno != EINTR) return false;
  }
  return true;
}

}  // namespace

Status PidfdWatch::Start(const std::vector<pid_t>& pids, Membership* membership,
                         std::unique_ptr<DeathWatch>* watch) {
  std::unique_ptr<PidfdWatch> made(new PidfdWatch(membership));
  HVD_RETURN_IF_ERROR(made->Open(pids));
  made->thread_ = std::thread([self = made.get()] { self->Watch(); });
  *watch = std::move(made);
  return Status::Ok();
}

PidfdWatch::~PidfdWatch() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  // An eventfd write of 1 cannot fall short; a failure is not curable here.
  if (write(stop_.get(), &one, sizeof(one)) == sizeof(one)) thread_.join();
}

Status PidfdWatch::Open(const std::vector<pid_t>& pids) {
  pidfds_.resize(pids.size());
  for (size_t peer = 0; peer < pids.size(); ++peer) {
    const int rank = static_cast<int>(peer);
    membership_->SetLabel(rank, membership_->label(rank) + " (pid " +
                                    std::to_string(pids[peer]) + ")");
    if (rank == membership_->rank()) continue;
    const std::string& who = membership_->label(rank);
    pidfds_[peer] =
        Fd(static_cast<int>(syscall(SYS_pidfd_open, pids[peer], 0)));
    if (pidfds_[peer].is_open()) continue;
    if (errno == ESRCH) return Status::PeerLost(who + " died during init");
    return SystemError("pidfd_open of " + who);
  }
  stop_ = Fd(eventfd(0, EFD_CLOEXEC));
  return stop_.is_open() ? Status::Ok() : SystemError("eventfd");
}

void PidfdWatch::Watch() {
  for (const Fd& fd : pidfds_) polled_.push_back(pollfd{fd.get(), POLLIN, 0});
  polled_.push_back(pollfd{stop_.get(), POLLIN, 0});
  while (!must_stop()) {
    if (poll(polled_.data(), polled_.size(), -1) < 0) {
      if (errno == EINTR) continue;
      // The limit of open files may be below the number of ranks, or memory
      // may be short: poll them one at a time.
      if (!PollEach(&polled_)) {
        membership_->MarkBlind(SystemError("poll").message());
        return;
      }
      std::this_thread::sleep_for(kLookInterval);
    }
    MarkDeadOnes();
  }
}

void PidfdWatch::MarkDeadOnes() {
  for (size_t peer = 0; peer < pidfds_.size(); ++peer) {
    if (polled_[peer].fd < 0 || polled_[peer].revents == 0) continue;
    membership_->MarkDead(static_cast<int>(peer));
    polled_[peer].fd = -1;
  }
}

}  // namespace hvd
