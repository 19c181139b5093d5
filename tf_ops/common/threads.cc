#include "tf_ops/common/threads.h"

#include <pthread.h>
#include <signal.h>

#include <string>
#include <system_error>
#include <utility>

namespace hvd {
namespace {

class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

std::thread ThreadWithoutSignals(std::function<void()> body) {
  const BlockedSignals blocked;  // the thread inherits that
  return std::thread(std::move(body));
}

Status CatchThreadLimit(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::system_error& error) {  // from std::thread
    return Status::Internal(
        std::string("starting a thread failed: ") + error.what() +
        ". Is the number of processes limited? See `ulimit -u`, and pids.max "
        "of the container's cgroup");
  }
  return Status::Ok();
}

}  // namespace hvd
