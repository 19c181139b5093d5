#include "tf_ops/wire/loopback/loopback.h"

#include <cstring>
#include <deque>
#include <map>
#include <tuple>
#include <utility>

#include "tf_ops/common/thread_annotations.h"

namespace hvd {
namespace {

struct Message {
  const void* from = nullptr;  // null: not yet sent
  void* to = nullptr;          // null: not yet received
  size_t num_bytes = 0;
  bool is_wrong = false;  // the two sides give different lengths

  bool has_ended() const { return from != nullptr && to != nullptr; }
};

// Sender, receiver, tag.
using Way = std::tuple<int, int, int>;

struct Network {
  Mutex mu;
  std::deque<Message> messages GUARDED_BY(mu);  // all there have been
  // Messages of which one side has come.
  std::map<Way, std::deque<Message*>> waiting GUARDED_BY(mu);
};

class Loopback : public Wire {
 public:
  Loopback(std::shared_ptr<Network> network, int host, int num_hosts)
      : network_(std::move(network)), host_(host), num_hosts_(num_hosts) {}

  int host() const override { return host_; }
  int num_hosts() const override { return num_hosts_; }

  Status Send(int host, int tag, const void* data, size_t num_bytes,
              WireTransfer* transfer) override {
    return Come({host_, host, tag}, data, nullptr, num_bytes, transfer);
  }
  Status Receive(int host, int tag, void* data, size_t num_bytes,
                 WireTransfer* transfer) override {
    return Come({host, host_, tag}, nullptr, data, num_bytes, transfer);
  }

  Status Poll(const std::vector<WireTransfer*>& transfers) override {
    MutexLock lock(&network_->mu);
    for (WireTransfer* transfer : transfers) {
      const auto* message = reinterpret_cast<Message*>(transfer->handle);
      transfer->is_active = !message->has_ended();
      if (message->is_wrong) {
        return Status::Internal("a message has two lengths");
      }
    }
    return Status::Ok();
  }
  Status Progress() override { return Status::Ok(); }

 private:
  // One side of a message comes.
  Status Come(const Way& way, const void* from, void* to, size_t num_bytes,
              WireTransfer* transfer) {
    const auto [sender, receiver, tag] = way;
    if (num_bytes == 0 || num_bytes > kMaxWireBytes || tag < 0 ||
        tag >= kNumWireTags || sender == receiver) {
      return Status::Internal("there is no such message");
    }
    MutexLock lock(&network_->mu);
    std::deque<Message*>& waiting = network_->waiting[way];
    const bool other_has_come =
        !waiting.empty() &&
        (from == nullptr ? waiting.front()->to == nullptr
                         : waiting.front()->from == nullptr);
    if (!other_has_come) {
      network_->messages.emplace_back();
      network_->messages.back().num_bytes = num_bytes;
      waiting.push_back(&network_->messages.back());
    }
    Message* const message = other_has_come ? waiting.front() : waiting.back();
    if (other_has_come) waiting.pop_front();
    if (from != nullptr) message->from = from;
    if (to != nullptr) message->to = to;
    message->is_wrong = message->num_bytes != num_bytes;
    if (message->has_ended() && !message->is_wrong) {
      std::memcpy(message->to, message->from, num_bytes);
    }
    transfer->handle = reinterpret_cast<uintptr_t>(message);
    transfer->is_active = true;
    return Status::Ok();
  }

  const std::shared_ptr<Network> network_;
  const int host_;
  const int num_hosts_;
};

}  // namespace

std::vector<std::unique_ptr<Wire>> CreateLoopbackWires(int num_hosts) {
  const auto network = std::make_shared<Network>();
  std::vector<std::unique_ptr<Wire>> wires;
  for (int host = 0; host < num_hosts; ++host) {
    wires.push_back(std::make_unique<Loopback>(network, host, num_hosts));
  }
  return wires;
}

}  // namespace hvd
