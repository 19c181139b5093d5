#include "tf_ops/collectives/wire/wire_loop.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "tf_ops/common/float_mode.h"
#include "tf_ops/common/futex.h"

namespace hvd {
namespace {

// Chunks whose bytes travel at the same time.
constexpr uint32_t kInFlight = 4;
// Up to so many bytes each host reduces all parts itself: one way over the
// network instead of two.
constexpr size_t kFlatBytes = 8 << 10;
// Without news the loop first spins, then naps: the network library moves
// nothing by itself, but the ranks may need this core. A nap is as long as the
// network takes for some bytes, so that a slow one wakes the loop less often:
// at 1 Gbit/s most of its processor time was that. After tens of milliseconds
// the naps grow, by a share of the time that it has waited. A yielded core
// would be gone for longer than a nap, wherever another thread wants it.
constexpr std::chrono::microseconds kSpin{200};
constexpr std::chrono::microseconds kShortNap{20};
constexpr std::chrono::microseconds kLongNap{500};
constexpr int kNapShare = 1000;
constexpr size_t kBytesOfNap = 12 << 10;
// Fewer received bytes do not tell how fast the network is.
constexpr size_t kFewestLearnedBytes = 256 << 10;
// After a job, what the network library has taken but not yet sent.
constexpr std::chrono::microseconds kShortSleep{1000};
constexpr int kNumShortSleeps = 100;
constexpr std::chrono::microseconds kLongSleep{100000};
// For the cause of an error of MPI.
constexpr std::chrono::milliseconds kPatience{500};

// The hosts form a tree below the source. A chain is best if there are many
// chunks, a binary tree if there are few.
int ParentOf(int position, bool is_chain) {
  return is_chain ? position - 1 : (position - 1) / 2;
}

std::vector<int> ChildrenOf(int position, int size, bool is_chain) {
  std::vector<int> children;
  const int first = is_chain ? position + 1 : 2 * position + 1;
  const int last = is_chain ? first : first + 1;
  for (int child = first; child <= last && child < size; ++child) {
    children.push_back(child);
  }
  return children;
}

}  // namespace

struct WireLoop::Chunk {
  uint32_t index = 0;
  int phase = 0;
  bool has_ended = false;
  std::vector<WireTransfer> sends;
  std::vector<WireTransfer> receives;
};

WireLoop::WireLoop(HostGroup* group, Wire* wire)
    : group_(group),
      wire_(wire),
      host_(wire->host()),
      num_hosts_(wire->num_hosts()),
      staging_(kInFlight),
      sources_(static_cast<size_t>(num_hosts_)),
      host_sum_(wire),
      spin_(kSpin),
      nap_(kShortNap) {
  // The ranks decide how long a collective may take.
  group_->set_wait_timeout(std::chrono::milliseconds{0});
}

Status WireLoop::Run() {
  const ScopedDenormals denormals;
  const Status status = RunJobs();
  if (!status.ok() && status.code() != StatusCode::kShutdown) {
    group_->membership()->DeclareBroken(CauseOf(status));
  }
  return status;
}

// If another wire has died, MPI may notice it before the leaders have told each
// other why.
Status WireLoop::CauseOf(const Status& status) const {
  const Clock::time_point end = Clock::now() + kPatience;
  while (status.code() != StatusCode::kPeerLost && Clock::now() < end) {
    const Status lost = group_->membership()->CheckPeers();
    if (!lost.ok()) return lost;
    std::this_thread::sleep_for(kLongSleep / 20);
  }
  return status;
}

Status WireLoop::RunJobs() {
  while (true) {
    WireJob job;
    HVD_RETURN_IF_ERROR(NextJob(&job));
    HVD_RETURN_IF_ERROR(RunJob(job));
  }
}

Status WireLoop::NextJob(WireJob* job) {
  for (int num_sleeps = 0;; ++num_sleeps) {
    const uint32_t ticket = group_->doorbell()->Ticket();
    bool found = false;
    HVD_RETURN_IF_ERROR(group_->control()->Receive(0, &inbox_, &found));
    size_t offset = 0;
    HVD_RETURN_IF_ERROR(Decode(inbox_, &offset, num_hosts_, job, &found));
    if (found) {
      inbox_.erase(inbox_.begin(),
                   inbox_.begin() + static_cast<ptrdiff_t>(offset));
      return Status::Ok();
    }
    HVD_RETURN_IF_ERROR(group_->membership()->CheckInterrupt());
    HVD_RETURN_IF_ERROR(wire_->Progress());
    group_->doorbell()->Wait(
        ticket, num_sleeps < kNumShortSleeps ? kShortSleep : kLongSleep,
        /*spin=*/num_sleeps == 0);
  }
}

Status WireLoop::RunJob(const WireJob& job) {
  const size_t slot_bytes = group_->slabs()->slot_bytes();
  switch (job.kind) {
    case WireJob::Kind::kBlocks: {
      layout_ = std::make_unique<BlockLayout>(job, slot_bytes);
      if (job.spec.wire_format != WireFormat::kExact) {
        residuals_.Prepare(job);
        return RunChunks(job, layout_->num_chunks(), &WireLoop::StepPacked);
      }
      const bool is_flat = job.reduces && job.gathers &&
                           layout_->num_chunks() == 1 &&
                           layout_->End(0) <= kFlatBytes;
      return RunChunks(job, layout_->num_chunks(),
                       is_flat ? &WireLoop::StepFlat : &WireLoop::StepBlocks);
    }
    case WireJob::Kind::kBroadcast:
      return RunChunks(
          job, static_cast<uint32_t>(DivideUp(job.bytes[0], slot_bytes)),
          &WireLoop::StepBroadcast);
    case WireJob::Kind::kLowRank:
      layout_ = std::make_unique<BlockLayout>(job, slot_bytes);
      low_rank_.Prepare(job);
      return RunChunks(job, 2 * layout_->num_chunks(), &WireLoop::StepLowRank);
    case WireJob::Kind::kAlltoall: {
      const uint64_t longest =
          std::max(*std::max_element(job.bytes.begin(), job.bytes.end()),
                   *std::max_element(job.received.begin(), job.received.end()));
      layout_ =
          std::make_unique<BlockLayout>(job.bytes, longest, slot_bytes / 2);
      received_ =
          std::make_unique<BlockLayout>(job.received, longest, slot_bytes / 2);
      return RunChunks(job, layout_->num_chunks(), &WireLoop::StepAlltoall);
    }
  }
  return Status::Internal("unknown kind of job");
}

Status WireLoop::RunChunks(const WireJob& job, uint32_t num_chunks,
                           Steps step) {
  HostSlabs* const slabs = group_->slabs();
  // So that it cannot fall behind by half the range of the numbers.
  slabs->Post(Flag::kOut, job.first_chunk);
  std::deque<Chunk> chunks;  // in flight
  // What comes at once is waited for with the shortest naps.
  job_nap_ = num_chunks > 1 ? nap_ : kShortNap;
  num_received_bytes_ = 0;
  Clock::time_point begin;
  uint32_t num_started = 0;
  uint32_t num_ended = 0;
  while (num_ended < num_chunks) {
    bool has_news = false;
    while (num_started < num_chunks && num_started - num_ended < kInFlight) {
      const uint32_t value = job.first_chunk + num_started + 1;
      bool all_posted = true;
      for (int rank = 0; all_posted && rank < slabs->size(); ++rank) {
        if (chunks.empty()) {  // there is nothing else to do
          HVD_RETURN_IF_ERROR(slabs->Wait(rank, Flag::kOut, value));
        }
        all_posted = slabs->HasPosted(rank, Flag::kOut, value);
      }
      if (!all_posted) break;
      if (num_started == 0) begin = Clock::now();
      chunks.emplace_back();
      chunks.back().index = num_started++;
      has_news = true;
    }
    HVD_RETURN_IF_ERROR(PollAll(&chunks));
    for (Chunk& chunk : chunks) {
      if (chunk.has_ended) continue;
      const int phase = chunk.phase;
      HVD_RETURN_IF_ERROR((this->*step)(job, &chunk));
      has_news = has_news || chunk.phase != phase || chunk.has_ended;
    }
    while (!chunks.empty() && chunks.front().has_ended) {
      slabs->Post(Flag::kOut, job.first_chunk + ++num_ended);
      chunks.pop_front();
    }
    if (has_news) {
      last_news_ = Clock::now();
    } else {
      HVD_RETURN_IF_ERROR(Idle());
    }
  }
  LearnNap(Clock::now() - begin);
  return Status::Ok();
}

void WireLoop::LearnNap(Clock::duration taken) {
  if (num_received_bytes_ < kFewestLearnedBytes) return;
  const auto share = static_cast<double>(kBytesOfNap) /
                     static_cast<double>(num_received_bytes_);
  nap_ = std::clamp<Clock::duration>(
      std::chrono::duration_cast<Clock::duration>(taken * share), kShortNap,
      kLongNap);
}

// Spinning is in vain if the network takes longer.
void WireLoop::LearnFromNews() {
  spin_ = Clock::now() - last_news_ < kSpin
              ? kSpin
              : std::max<Clock::duration>(spin_ / 2, kShortNap);
}

Status WireLoop::Idle() {
  const auto waited = Clock::now() - last_news_;
  if (waited < spin_) {
    CpuPause();
    return Status::Ok();
  }
  HVD_RETURN_IF_ERROR(group_->membership()->CheckWaitFor(0));
  std::this_thread::sleep_for(
      std::clamp<Clock::duration>(waited / kNapShare, job_nap_, kLongNap));
  return Status::Ok();
}

// Reduce-scatter, if the job reduces, then all-gather, if it gathers.
Status WireLoop::StepBlocks(const WireJob& job, Chunk* chunk) {
  std::byte* const data = slot(job, *chunk);
  const size_t own_size = layout_->Part(host_, chunk->index).size();
  std::byte* const own = data + layout_->Offset(host_);
  if (chunk->phase == 0 && job.reduces) {
    chunk->phase = 1;
    return ForEachPeer([&](int to, int from) -> Status {
      HVD_RETURN_IF_ERROR(Receive(
          from, 0, staging(*chunk) + layout_->Offset(from), own_size, chunk));
      return Send(to, 0, data + layout_->Offset(to),
                  layout_->Part(to, chunk->index).size(), chunk);
    });
  }
  if (chunk->phase == 1 && chunk->receives.empty()) {
    chunk->phase = 2;
    ReduceParts(job, *chunk, own, own_size, own);
  }
  // Results come into memory that was sent from.
  const bool may_gather = job.reduces
                              ? chunk->phase == 2 && chunk->sends.empty()
                              : chunk->phase == 0;
  if (may_gather) {
    chunk->phase = 3;
    if (job.gathers) {
      return ForEachPeer([&](int to, int from) -> Status {
        HVD_RETURN_IF_ERROR(Receive(from, 1, data + layout_->Offset(from),
                                    layout_->Part(from, chunk->index).size(),
                                    chunk));
        return Send(to, 1, own, own_size, chunk);
      });
    }
  }
  chunk->has_ended =
      chunk->phase == 3 && chunk->sends.empty() && chunk->receives.empty();
  return Status::Ok();
}

// As StepBlocks, of packed parts. The result is packed once, and this host uses
// what the others unpack. A residual is of what a host brings for others, and
// of the result for its own part.
Status WireLoop::StepPacked(const WireJob& job, Chunk* chunk) {
  const DataType dtype = job.spec.dtype;
  const WireFormat format = job.spec.wire_format;
  const size_t unit = UnitOf(job.spec);
  const size_t packed = PackedBytes(format, dtype);
  const auto num_blocks = [&](int host) {
    return layout_->Part(host, chunk->index).size() / unit;
  };
  const auto num_bytes = [&](int host) { return num_blocks(host) * packed; };
  const auto part = [&](int host) {
    return slot(job, *chunk) + layout_->Offset(host);
  };
  // For each host, what is sent of its part, then what is received.
  const size_t stride = layout_->Offset(1) / unit * packed;
  const auto outgoing = [&](int host) {
    return staging(*chunk) + stride * static_cast<size_t>(host);
  };
  const auto incoming = [&](int host) { return outgoing(num_hosts_ + host); };
  if (chunk->phase == 0) {
    chunk->phase = 1;
    return ForEachPeer([&](int to, int from) -> Status {
      HVD_RETURN_IF_ERROR(
          Receive(from, 0, incoming(from), num_bytes(host_), chunk));
      residuals_.ForEachRun(to, layout_->Part(to, chunk->index), unit,
                            [&](size_t first, size_t count, void* residual) {
                              Pack(format, dtype, part(to) + first * unit,
                                   count, outgoing(to) + first * packed,
                                   residual);
                            });
      return Send(to, 0, outgoing(to), num_bytes(to), chunk);
    });
  }
  if (!chunk->receives.empty()) return Status::Ok();
  if (chunk->phase == 1) {
    chunk->phase = 2;
    residuals_.ForEachRun(
        host_, layout_->Part(host_, chunk->index), unit,
        [&](size_t first, size_t count, void* residual) {
          std::byte* const own = part(host_) + first * unit;
          for (int host = 0; host < num_hosts_; ++host) {
            sources_[static_cast<size_t>(host)] =
                host == host_ ? own : incoming(host) + first * packed;
          }
          ReducePacked(job.spec, sources_.data(), num_hosts_, host_, count, own,
                       outgoing(host_) + first * packed, residual);
        });
    return ForEachPeer([&](int to, int from) -> Status {
      HVD_RETURN_IF_ERROR(
          Receive(from, 1, incoming(from), num_bytes(from), chunk));
      return Send(to, 1, outgoing(host_), num_bytes(host_), chunk);
    });
  }
  if (chunk->phase == 2) {
    chunk->phase = 3;
    for (int host = 0; host < num_hosts_; ++host) {
      if (host == host_) continue;
      Unpack(format, dtype, incoming(host), num_blocks(host), part(host));
    }
  }
  chunk->has_ended = chunk->sends.empty();
  return Status::Ok();
}

// Each host gets everything and reduces all of it.
Status WireLoop::StepFlat(const WireJob& job, Chunk* chunk) {
  std::byte* const data = slot(job, *chunk);
  const size_t size = layout_->End(chunk->index);
  const auto piece = [&](int host) {
    return staging(*chunk) + size * static_cast<size_t>(host);
  };
  if (chunk->phase == 0) {
    chunk->phase = 1;
    std::memcpy(piece(host_), data, size);
    return ForEachPeer([&](int to, int from) -> Status {
      HVD_RETURN_IF_ERROR(Receive(from, 0, piece(from), size, chunk));
      return Send(to, 0, piece(host_), size, chunk);
    });
  }
  if (!chunk->sends.empty() || !chunk->receives.empty()) return Status::Ok();
  for (int host = 0; host < num_hosts_; ++host) {
    sources_[static_cast<size_t>(host)] = piece(host);
  }
  Reduce(job.spec, sources_.data(), num_hosts_, data,
         size / ElementBytes(job.spec.dtype));
  chunk->has_ended = true;
  return Status::Ok();
}

Status WireLoop::StepBroadcast(const WireJob& job, Chunk* chunk) {
  const size_t slot_bytes = group_->slabs()->slot_bytes();
  const Range range = ChunkOf(job.bytes[0], slot_bytes, chunk->index);
  const bool is_chain =
      DivideUp(job.bytes[0], slot_bytes) >= static_cast<size_t>(num_hosts_);
  const int position = (host_ - job.host + num_hosts_) % num_hosts_;
  const auto host_at = [&](int p) { return (job.host + p) % num_hosts_; };
  std::byte* const data = slot(job, *chunk);
  if (chunk->phase == 0) {
    chunk->phase = 1;
    if (position > 0) {
      HVD_RETURN_IF_ERROR(Receive(host_at(ParentOf(position, is_chain)), 0,
                                  data, range.size(), chunk));
    }
  }
  if (chunk->phase == 1 && chunk->receives.empty()) {
    chunk->phase = 2;
    for (int child : ChildrenOf(position, num_hosts_, is_chain)) {
      HVD_RETURN_IF_ERROR(Send(host_at(child), 0, data, range.size(), chunk));
    }
  }
  chunk->has_ended = chunk->phase == 2 && chunk->sends.empty();
  return Status::Ok();
}

Status WireLoop::StepAlltoall(const WireJob& job, Chunk* chunk) {
  std::byte* const data = slot(job, *chunk);
  if (chunk->phase == 0) {
    chunk->phase = 1;
    return ForEachPeer([&](int to, int from) -> Status {
      HVD_RETURN_IF_ERROR(
          Receive(from, 0, data + received_->Offset(num_hosts_ + from),
                  received_->Part(from, chunk->index).size(), chunk));
      return Send(to, 0, data + layout_->Offset(to),
                  layout_->Part(to, chunk->index).size(), chunk);
    });
  }
  chunk->has_ended = chunk->sends.empty() && chunk->receives.empty();
  return Status::Ok();
}

// Takes what the ranks bring, chunk by chunk, then adds up factors, then gives
// the results. No other chunk has transfers meanwhile.
Status WireLoop::StepLowRank(const WireJob& job, Chunk* chunk) {
  const uint32_t num_chunks = layout_->num_chunks();
  const Range part = layout_->Part(0, chunk->index % num_chunks);
  std::byte* const data = slot(job, *chunk);
  if (chunk->index < num_chunks) {
    low_rank_.Take(part.begin, part.size(), data);
  } else {
    if (chunk->index == num_chunks) {
      HVD_RETURN_IF_ERROR(
          low_rank_.Combine(num_hosts_, [this](float* values, size_t count) {
            last_news_ = Clock::now();
            return host_sum_.Run(values, count, [this] { return Idle(); });
          }));
    }
    low_rank_.Give(part.begin, part.size(), data);
  }
  chunk->has_ended = true;
  return Status::Ok();
}

void WireLoop::ReduceParts(const WireJob& job, const Chunk& chunk,
                           const std::byte* own, size_t size, std::byte* out) {
  for (int host = 0; host < num_hosts_; ++host) {
    sources_[static_cast<size_t>(host)] =
        host == host_ ? own : staging(chunk) + layout_->Offset(host);
  }
  Reduce(job.spec, sources_.data(), num_hosts_, out,
         size / ElementBytes(job.spec.dtype));
}

// Chunks that travel at the same time have different tags, and so have the
// phases of one.
Status WireLoop::Send(int host, int phase, const std::byte* data,
                      size_t num_bytes, Chunk* chunk) {
  if (num_bytes == 0) return Status::Ok();
  chunk->sends.emplace_back();
  ++num_transfers_;
  return wire_->Send(host,
                     static_cast<int>(chunk->index % kInFlight) * 2 + phase,
                     data, num_bytes, &chunk->sends.back());
}

Status WireLoop::Receive(int host, int phase, std::byte* data, size_t num_bytes,
                         Chunk* chunk) {
  if (num_bytes == 0) return Status::Ok();
  chunk->receives.emplace_back();
  ++num_transfers_;
  num_received_bytes_ += num_bytes;
  return wire_->Receive(host,
                        static_cast<int>(chunk->index % kInFlight) * 2 + phase,
                        data, num_bytes, &chunk->receives.back());
}

Status WireLoop::PollAll(std::deque<Chunk>* chunks) {
  polled_.clear();
  for (Chunk& chunk : *chunks) {
    for (WireTransfer& transfer : chunk.sends) polled_.push_back(&transfer);
    for (WireTransfer& transfer : chunk.receives) polled_.push_back(&transfer);
  }
  if (polled_.empty()) return Status::Ok();
  HVD_RETURN_IF_ERROR(wire_->Poll(polled_));
  if (std::all_of(polled_.begin(), polled_.end(),
                  [](const WireTransfer* t) { return t->is_active; })) {
    return Status::Ok();
  }
  LearnFromNews();
  num_transfers_ = 0;
  for (Chunk& chunk : *chunks) {
    for (std::vector<WireTransfer>* transfers :
         {&chunk.sends, &chunk.receives}) {
      transfers->erase(
          std::remove_if(transfers->begin(), transfers->end(),
                         [](const WireTransfer& t) { return !t.is_active; }),
          transfers->end());
      num_transfers_ += transfers->size();
    }
  }
  return Status::Ok();
}

std::byte* WireLoop::slot(const WireJob& job, const Chunk& chunk) const {
  return group_->slabs()->slot(group_->slabs()->size(),
                               job.first_chunk + chunk.index);
}

std::byte* WireLoop::staging(const Chunk& chunk) {
  std::unique_ptr<std::byte[]>& memory = staging_[chunk.index % kInFlight];
  if (memory == nullptr) {
    // Packed, 16 bits an element become 8, and 4 bytes a block, twice.
    const size_t slot_bytes = group_->slabs()->slot_bytes();
    static_assert(16 * 2 * PackedBytes(WireFormat::kInt8, DataType::kFloat16) <
                  17 * 2 * kPackedElements);
    memory = std::make_unique<std::byte[]>(
        std::max(slot_bytes + slot_bytes / 16,
                 kFlatBytes * static_cast<size_t>(num_hosts_)));
  }
  return memory.get();
}

}  // namespace hvd
