#include "tf_ops/wire/tcp/tcp_links.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "tf_ops/common/futex.h"
#include "tf_ops/common/log.h"
#include "tf_ops/common/thread_annotations.h"
#include "tf_ops/wire/tcp/frames.h"

namespace hvd {
namespace {

// How often the thread looks whether a rank of this host is gone.
constexpr std::chrono::milliseconds kLook{50};
// For the last words of a leader that leaves.
constexpr std::chrono::milliseconds kFarewell{1000};
constexpr size_t kReadBytes = 256 << 10;

// The leader of another host.
struct Peer {
  size_t host = 0;
  Fd socket;

  Mutex mu;
  std::vector<uint8_t> unsent GUARDED_BY(mu);  // frames
  std::vector<uint8_t> inbox GUARDED_BY(mu);   // what data frames held
  std::atomic<bool> has_data{false};           // `inbox` is not empty

  // Of the thread of the links:
  std::vector<uint8_t> received;  // not yet understood
};

std::vector<bool> AreOpen(const std::vector<Fd>& sockets) {
  std::vector<bool> are_open;
  for (const Fd& socket : sockets) are_open.push_back(socket.is_open());
  return are_open;
}

class TcpLinks : public ControlLinks {
 public:
  TcpLinks(TcpLinksOptions options, Fd wake)
      : options_(std::move(options)),
        wake_(std::move(wake)),
        silence_(options_, AreOpen(options_.sockets), Clock::now()) {
    for (size_t host = 0; host < options_.sockets.size(); ++host) {
      peers_.push_back(std::make_unique<Peer>());
      peers_.back()->host = host;
      peers_.back()->socket = std::move(options_.sockets[host]);
    }
    queued_.resize(peers_.size());
    thread_ = std::thread([this] { Run(); });
  }

  ~TcpLinks() override {
    must_stop_.store(true);
    Wake();
    thread_.join();
    SayFarewell();
  }

  int host() const override { return options_.host; }
  int num_hosts() const override { return static_cast<int>(peers_.size()); }

  void Send(int host, const std::vector<uint8_t>& bytes) override {
    std::vector<uint8_t>& queue = queued_[static_cast<size_t>(host)];
    queue.insert(queue.end(), bytes.begin(), bytes.end());
  }

  Status Flush() override {
    for (size_t host = 0; host < peers_.size(); ++host) {
      std::vector<uint8_t>& queue = queued_[host];
      if (queue.empty()) continue;
      SendFrame(peers_[host].get(), FrameKind::kData, queue.data(),
                queue.size());
      queue.clear();
    }
    return Status::Ok();
  }
  // What did not go at once is sent by our thread.
  bool has_unsent() const override { return false; }
  Status FlushAll() override { return Flush(); }
  void TellLosses() override {
    must_look_.store(true);
    Wake();
  }

  Status Receive(int host, std::vector<uint8_t>* bytes,
                 bool* received) override {
    Peer* const peer = peers_[static_cast<size_t>(host)].get();
    *received = peer->has_data.load();
    if (!*received) return Status::Ok();
    MutexLock lock(&peer->mu);
    bytes->insert(bytes->end(), peer->inbox.begin(), peer->inbox.end());
    peer->inbox.clear();
    peer->has_data.store(false);
    return Status::Ok();
  }

 private:
  void Wake() {
    const uint64_t one = 1;
    // An eventfd write of 1 cannot fall short.
    if (write(wake_.get(), &one, sizeof(one)) < 0) return;
  }

  void SendFrame(Peer* peer, FrameKind kind, const void* body,
                 size_t num_bytes) {
    if (!peer->socket.is_open()) return;
    bool is_left = false;
    {
      MutexLock lock(&peer->mu);
      AppendFrame(kind, body, num_bytes, &peer->unsent);
      SendWhatGoes(peer);
      is_left = !peer->unsent.empty();
    }
    if (is_left) Wake();
  }

  void SendWhatGoes(Peer* peer) REQUIRES(peer->mu) {
    while (!peer->unsent.empty()) {
      const ssize_t count =
          send(peer->socket.get(), peer->unsent.data(), peer->unsent.size(),
               MSG_DONTWAIT | MSG_NOSIGNAL);
      if (count < 0) {
        if (errno == EINTR) continue;
        // If the connection is broken our thread finds out when it reads.
        if (errno != EAGAIN && errno != EWOULDBLOCK) peer->unsent.clear();
        return;
      }
      peer->unsent.erase(peer->unsent.begin(), peer->unsent.begin() + count);
    }
  }

  void Tell(FrameKind kind, const std::string& text, const Peer* but) {
    const size_t num_bytes = std::min(text.size(), kMaxTextBytes);
    for (const auto& peer : peers_) {
      if (peer.get() != but)
        SendFrame(peer.get(), kind, text.data(), num_bytes);
    }
  }

  // ---- Our thread ----

  void Run() {
    (void)prctl(PR_SET_NAME, "hvd_links");
    std::vector<pollfd> polled;
    LookAtClock();
    while (!must_stop_.load()) {
      polled.clear();
      for (const auto& peer : peers_) {
        short events = POLLIN;
        {
          MutexLock lock(&peer->mu);
          if (!peer->unsent.empty()) events |= POLLOUT;
        }
        polled.push_back(
            pollfd{MayHear(*peer) ? peer->socket.get() : -1, events, 0});
      }
      polled.push_back(pollfd{wake_.get(), POLLIN, 0});
      const int count =
          poll(polled.data(), polled.size(), static_cast<int>(kLook.count()));
      if (count > 0) {
        if (polled.back().revents != 0) {
          uint64_t rings;
          if (read(wake_.get(), &rings, sizeof(rings)) < 0) continue;
        }
        for (size_t i = 0; i < peers_.size(); ++i) {
          if (polled[i].revents != 0) Serve(peers_[i].get());
        }
      }
      const Clock::time_point now = Clock::now();
      if (now < next_look_ && !must_look_.exchange(false)) continue;
      next_look_ = now + kLook;
      options_.alive();
      LookAtOwnRanks();
      KeepAlive(now);
      LookAtClock();
    }
  }

  void Serve(Peer* peer) {
    {
      MutexLock lock(&peer->mu);
      SendWhatGoes(peer);
    }
    while (true) {
      const ssize_t count = recv(peer->socket.get(), buffer_.data(),
                                 buffer_.size(), MSG_DONTWAIT);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (count <= 0) {
        Lose(peer, Leader(*peer) + " is gone: its connection ended");
        return;
      }
      peer->received.insert(peer->received.end(), buffer_.begin(),
                            buffer_.begin() + count);
      silence_.Hear(peer->host, Clock::now());
      if (!TakeAll(peer)) {
        Lose(peer, Leader(*peer) + " sent what makes no sense");
        return;
      }
      if (static_cast<size_t>(count) < buffer_.size()) return;
    }
  }

  // False if the bytes make no sense.
  bool TakeAll(Peer* peer) {
    bool has_data = false;
    const bool makes_sense =
        TakeFrames(&peer->received,
                   [&](FrameKind kind, const uint8_t* body, size_t num_bytes) {
                     Take(peer, kind, body, num_bytes);
                     has_data = has_data || kind == FrameKind::kData;
                   });
    if (makes_sense && has_data) options_.ring();
    return makes_sense;
  }

  void Take(Peer* peer, FrameKind kind, const uint8_t* body, size_t num_bytes) {
    switch (kind) {
      case FrameKind::kData: {
        MutexLock lock(&peer->mu);
        peer->inbox.insert(peer->inbox.end(), body, body + num_bytes);
        peer->has_data.store(true);
        return;
      }
      case FrameKind::kHeartbeat:
        return;
      case FrameKind::kLeft:
        return options_.others_left(std::string(body, body + num_bytes));
      case FrameKind::kLost:
        return HearLoss(peer, std::string(body, body + num_bytes));
      case FrameKind::kGoodbye:
        return silence_.End(peer->host);
      case FrameKind::kAskTime:
        return TellTime(peer, body);
      case FrameKind::kTime:
        return HearTime(peer, body);
    }
  }

  // Begins to read host 0's clock, if that is due.
  void LookAtClock() {
    if (options_.clock_is_due == nullptr || !MayHear(*peers_[0])) return;
    if (clock_.is_reading() || !options_.clock_is_due()) return;
    clock_.Begin();
    AskTime();
  }

  void AskTime() {
    const ClockReader::Question question = ClockReader::Ask();
    SendFrame(peers_[0].get(), FrameKind::kAskTime, question.data(),
              question.size());
  }

  void TellTime(Peer* peer, const uint8_t* question) {
    const ClockReader::Answer answer = ClockReader::AnswerTo(question);
    SendFrame(peer, FrameKind::kTime, answer.data(), answer.size());
  }

  void HearTime(const Peer* from, const uint8_t* answer) {
    if (from != peers_[0].get() || !clock_.is_reading()) return;
    clock_.Hear(answer);
    if (clock_.is_reading()) return AskTime();
    if (clock_.best().has_value()) options_.clock_was_read(*clock_.best());
  }

  void HearLoss(const Peer* from, const std::string& text) {
    options_.others_lost(text);
    if (std::exchange(has_told_loss_, true)) return;
    Tell(FrameKind::kLost, text, from);
  }

  void Lose(Peer* peer, const std::string& why) {
    silence_.Lose(peer->host);
    if (!silence_.has_ended(peer->host)) HearLoss(peer, why);
  }

  void LookAtOwnRanks() {
    TellWhoIsLost();
    TellWhoLeft();
  }

  void TellWhoIsLost() {
    if (has_told_loss_) return;
    const std::string lost = options_.why_lost();
    if (lost.empty()) return;
    has_told_loss_ = true;
    Tell(FrameKind::kLost, lost, nullptr);
  }

  void TellWhoLeft() {
    if (has_told_left_) return;
    const std::string left = options_.why_left();
    if (left.empty()) return;
    has_told_left_ = true;
    Tell(FrameKind::kLeft, left, nullptr);
  }

  void KeepAlive(Clock::time_point now) {
    const bool must_speak =
        options_.heartbeat.count() > 0 && now >= next_heartbeat_;
    if (must_speak) next_heartbeat_ = now + options_.heartbeat;
    for (const auto& peer : peers_) {
      if (!MayHear(*peer)) continue;
      if (must_speak) SendFrame(peer.get(), FrameKind::kHeartbeat, nullptr, 0);
      const auto finding = silence_.Look(peer->host, now);
      if (!finding.has_value()) continue;
      if (finding->is_minority) options_.is_minority();
      if (finding->is_lost) {
        Lose(peer.get(), finding->text);
      } else {
        options_.warn(finding->text);
      }
    }
  }

  // Whether there is a link, and the peer is not lost.
  bool MayHear(const Peer& peer) const {
    return silence_.is_expected(peer.host);
  }

  const std::string& Leader(const Peer& peer) const {
    return options_.leaders[peer.host];
  }

  // After our thread has ended.
  void SayFarewell() {
    LookAtOwnRanks();
    const Clock::time_point end = Clock::now() + kFarewell;
    for (const auto& peer : peers_) {
      if (!MayHear(*peer)) continue;
      SendFrame(peer.get(), FrameKind::kGoodbye, nullptr, 0);
      MutexLock lock(&peer->mu);
      while (!peer->unsent.empty() && Clock::now() < end) {
        pollfd polled{peer->socket.get(), POLLOUT, 0};
        (void)poll(&polled, 1, 10);
        SendWhatGoes(peer.get());
      }
      shutdown(peer->socket.get(), SHUT_WR);
    }
  }

  TcpLinksOptions options_;
  const Fd wake_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by host
  std::vector<std::vector<uint8_t>> queued_;  // by host: of Send, before Flush
  std::vector<uint8_t> buffer_ = std::vector<uint8_t>(kReadBytes);
  std::atomic<bool> must_stop_{false};
  std::atomic<bool> must_look_{false};
  bool has_told_loss_ = false;  // of our thread, until it has ended
  bool has_told_left_ = false;  // likewise
  Clock::time_point next_look_{};
  Clock::time_point next_heartbeat_{};
  Silence silence_;     // of our thread
  ClockReader clock_;   // of host 0
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace

Status ConnectTcpLinks(TcpLinksOptions options,
                       std::unique_ptr<ControlLinks>* links) {
  Fd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.is_open()) {
    return Status::Internal(std::string("eventfd: ") + std::strerror(errno));
  }
  for (const Fd& socket : options.sockets) {
    if (!socket.is_open()) continue;
    const int on = 1;
    // A Unix socket, as in tests, has no such option.
    (void)setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }
  *links = std::make_unique<TcpLinks>(std::move(options), std::move(wake));
  return Status::Ok();
}

}  // namespace hvd
