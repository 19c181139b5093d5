#include "tf_ops/wire/loopback/loopback_links.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "tf_ops/common/futex.h"
#include "tf_ops/common/thread_annotations.h"

namespace hvd {
namespace {

// One way between two hosts.
class Stream {
 public:
  // Moves what fits from the front of `*bytes`; true if that is anything.
  bool Write(size_t capacity_bytes, std::vector<uint8_t>* bytes) {
    MutexLock lock(&mu_);
    const size_t free = capacity_bytes - std::min(capacity_bytes, held_.size());
    const size_t count = std::min(free, bytes->size());
    const auto end = bytes->begin() + static_cast<ptrdiff_t>(count);
    held_.insert(held_.end(), bytes->begin(), end);
    bytes->erase(bytes->begin(), end);
    writer_waits_ = !bytes->empty();
    return count > 0;
  }

  // Appends all to `*bytes`; true if that is anything.
  bool Read(std::vector<uint8_t>* bytes, bool* writer_waits) {
    MutexLock lock(&mu_);
    if (held_.empty()) return false;
    bytes->insert(bytes->end(), held_.begin(), held_.end());
    held_.clear();
    *writer_waits = std::exchange(writer_waits_, false);
    return true;
  }

 private:
  Mutex mu_;
  std::vector<uint8_t> held_ GUARDED_BY(mu_);
  bool writer_waits_ GUARDED_BY(mu_) = false;
};

struct Star {
  Star(int num_hosts, const LoopbackOptions& o)
      : options(o),
        to_first(static_cast<size_t>(num_hosts)),
        from_first(static_cast<size_t>(num_hosts)) {}

  const LoopbackOptions options;
  std::vector<Stream> to_first;    // by host: to host 0
  std::vector<Stream> from_first;  // by host: from host 0
};

class LoopbackLinks : public ControlLinks {
 public:
  LoopbackLinks(std::shared_ptr<Star> star, int host)
      : star_(std::move(star)),
        host_(host),
        outboxes_(star_->to_first.size()) {}

  int host() const override { return host_; }
  int num_hosts() const override { return static_cast<int>(outboxes_.size()); }

  void Send(int host, const std::vector<uint8_t>& bytes) override {
    std::vector<uint8_t>& outbox = outboxes_[static_cast<size_t>(host)];
    outbox.insert(outbox.end(), bytes.begin(), bytes.end());
  }

  Status Flush() override {
    for (int host = 0; host < num_hosts(); ++host) {
      std::vector<uint8_t>& outbox = outboxes_[static_cast<size_t>(host)];
      if (outbox.empty()) continue;
      Stream& stream = host_ == 0 ? star_->from_first[static_cast<size_t>(host)]
                                  : star_->to_first[static_cast<size_t>(host_)];
      if (stream.Write(star_->options.capacity_bytes, &outbox)) Ring(host);
    }
    return Status::Ok();
  }

  bool has_unsent() const override {
    return std::any_of(outboxes_.begin(), outboxes_.end(),
                       [](const auto& outbox) { return !outbox.empty(); });
  }

  Status FlushAll() override {
    const Clock::time_point begin = Clock::now();
    while (true) {
      HVD_RETURN_IF_ERROR(Flush());
      if (!has_unsent()) return Status::Ok();
      if (Clock::now() - begin > star_->options.timeout) {
        return Status::Stalled("a host does not read the messages of host " +
                               std::to_string(host_));
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  Status Receive(int host, std::vector<uint8_t>* bytes,
                 bool* received) override {
    Stream& stream = host_ == 0 ? star_->to_first[static_cast<size_t>(host)]
                                : star_->from_first[static_cast<size_t>(host_)];
    bool writer_waits = false;
    *received = stream.Read(bytes, &writer_waits);
    if (writer_waits) Ring(host);
    return Status::Ok();
  }

 private:
  void Ring(int host) {
    if (star_->options.ring != nullptr) star_->options.ring(host);
  }

  const std::shared_ptr<Star> star_;
  const int host_;
  std::vector<std::vector<uint8_t>> outboxes_;  // by host: not yet sent
};

}  // namespace

std::vector<std::unique_ptr<ControlLinks>> CreateLoopbackLinks(
    int num_hosts, const LoopbackOptions& options) {
  const auto star = std::make_shared<Star>(num_hosts, options);
  std::vector<std::unique_ptr<ControlLinks>> links;
  for (int host = 0; host < num_hosts; ++host) {
    links.push_back(std::make_unique<LoopbackLinks>(star, host));
  }
  return links;
}

}  // namespace hvd
