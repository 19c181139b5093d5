#include "tests/gpu/fake/fake_nccl_work.h"

#include <fcntl.h>
#include <unistd.h>

#include <thread>
#include <utility>

namespace fake {

std::atomic<bool> run_alone{false};

bool Rendezvous(Comm* comm) {
  const int fd = shm_open(comm->name.c_str(), O_CREAT | O_RDWR, 0600);
  if (fd < 0) return false;
  const size_t num_bytes = comm->region_bytes();
  const bool sized = ftruncate(fd, static_cast<off_t>(num_bytes)) == 0;
  void* const memory = sized ? mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE,
                                    MAP_SHARED, fd, 0)
                             : MAP_FAILED;
  close(fd);
  if (memory == MAP_FAILED) return false;
  comm->region = static_cast<Region*>(memory);
  comm->region->num_attached.fetch_add(1);
  while (comm->region->num_attached.load() < comm->size) {
    if (comm->aborted.load()) return false;
    ::usleep(100);
  }
  if (comm->rank == 0) shm_unlink(comm->name.c_str());
  return true;
}

std::shared_ptr<Comm> SplitOff(Comm* parent, int split, bool is_member) {
  std::atomic<int>* const votes = parent->region->votes[split];
  votes[parent->rank].store(is_member ? 2 : 1);
  auto part = std::make_shared<Comm>();
  part->device = parent->device;
  part->name = parent->name + "_" + std::to_string(split);
  for (int rank = 0; rank < parent->size; ++rank) {
    while (votes[rank].load() == 0) {
      if (parent->aborted.load()) return nullptr;
      ::usleep(100);
    }
    if (votes[rank].load() != 2) continue;
    if (rank == parent->rank) part->rank = part->size;
    ++part->size;
  }
  if (!is_member || !Rendezvous(part.get())) return nullptr;
  part->state.store(hvd::kNcclSuccess);
  return part;
}

void Work::Run() {
  if (comm().num_running.fetch_add(1) > 0) {
    Misuse("two groups of a communicator at once");
  }
  NumCollectivesOn(comm().device).fetch_add(1);
  SetRunning(true);
  if (PlanAndMove()) {
    for (const auto& finish : finishes_) finish();
  }
  SetRunning(false);
  NumCollectivesOn(comm().device).fetch_sub(1);
  comm().num_running.fetch_sub(1);
  comm().num_pending.fetch_sub(1);
}

void Work::SetRunning(bool is_running) {
  if (comm().rank >= kMaxSplitRanks) return;
  comm().region->is_running[comm().rank].store(is_running ? 1 : 0);
}

bool Work::PlanAndMove() {
  static std::atomic<bool> taken[64];
  std::atomic<bool>* const gpu = &taken[comm().device];
  const bool is_alone = run_alone.load();
  while (is_alone && gpu->exchange(true)) {
    if (comm().aborted.load()) return false;
    ::usleep(50);
  }
  const bool is_done = PlanAndMoveNow();
  if (is_alone) gpu->store(false);
  return is_done;
}

bool Work::PlanAndMoveNow() {
  const size_t size = static_cast<size_t>(comm().size);
  sends_.resize(size);
  receives_.resize(size);
  for (const Call& call : calls_) Plan(call);
  return Move();
}

void Work::Send(int peer, const char* bytes, size_t num_bytes) {
  sends_[static_cast<size_t>(peer)].list.push_back(
      {const_cast<char*>(bytes), num_bytes});
}

char* Work::Receive(int peer, size_t num_bytes) {
  memory_.emplace_back(new char[num_bytes]);
  receives_[static_cast<size_t>(peer)].list.push_back(
      {memory_.back().get(), num_bytes});
  return memory_.back().get();
}

void Work::ReceiveAndReduce(const Call& call) {
  std::vector<const void*> sources;
  for (int peer = 0; peer < comm().size; ++peer) {
    sources.push_back(Receive(peer, call.num_bytes()));
  }
  finishes_.push_back([call, sources] {
    const auto reduce =
        hvd::IsFloat8(call.spec.dtype) ? &ReduceFloat8 : &hvd::Reduce;
    reduce(call.spec, sources.data(), static_cast<int>(sources.size()),
           call.out, call.num_elements);
  });
}

void Work::Plan(const Call& call) {
  const size_t n = call.num_bytes();
  Comm& c = comm();
  switch (call.kind) {
    case Kind::kSend:
      return Send(call.peer, call.in, n);
    case Kind::kRecv: {
      const char* const from = Receive(call.peer, n);
      finishes_.push_back([=] { std::memcpy(call.out, from, n); });
      return;
    }
    case Kind::kBroadcast: {
      for (int peer = 0; c.rank == call.peer && peer < c.size; ++peer) {
        Send(peer, call.in, n);
      }
      const char* const from = Receive(call.peer, n);
      finishes_.push_back([=] { std::memcpy(call.out, from, n); });
      return;
    }
    case Kind::kAllGather:
      for (int peer = 0; peer < c.size; ++peer) {
        Send(peer, call.in, n);
        const char* const from = Receive(peer, n);
        char* const to = call.out + static_cast<size_t>(peer) * n;
        finishes_.push_back([=] { std::memcpy(to, from, n); });
      }
      return;
    case Kind::kReduce:
      Send(call.peer, call.in, n);
      if (c.rank == call.peer) ReceiveAndReduce(call);
      return;
    case Kind::kAllReduce:
      for (int peer = 0; peer < c.size; ++peer) Send(peer, call.in, n);
      return ReceiveAndReduce(call);
    case Kind::kReduceScatter:
      for (int peer = 0; peer < c.size; ++peer) {
        Send(peer, call.in + static_cast<size_t>(peer) * n, n);
      }
      return ReceiveAndReduce(call);
  }
}

template <typename F>
bool Work::Step(Pieces* pieces, F transfer) {
  bool moved = false;
  while (pieces->next < pieces->list.size()) {
    Piece& piece = pieces->list[pieces->next];
    const size_t n = transfer(piece.bytes, piece.num_bytes);
    piece.bytes += n;
    piece.num_bytes -= n;
    moved = moved || n > 0;
    if (piece.num_bytes > 0) break;
    ++pieces->next;
  }
  return moved;
}

bool Work::Move() {
  Comm& c = comm();
  int num_idle = 0;
  while (true) {
    bool moved = false;
    bool is_done = true;
    for (int peer = 0; peer < c.size; ++peer) {
      Pieces& out = sends_[static_cast<size_t>(peer)];
      Pieces& in = receives_[static_cast<size_t>(peer)];
      Ring* const to = c.ring(c.rank, peer);
      Ring* const from = c.ring(peer, c.rank);
      moved = Step(&out, [to](const char* bytes,
                              size_t n) { return to->Write(bytes, n); }) ||
              moved;
      moved = Step(&in, [from](char* bytes,
                               size_t n) { return from->Read(bytes, n); }) ||
              moved;
      is_done =
          is_done && out.next == out.list.size() && in.next == in.list.size();
    }
    if (is_done) return true;
    if (c.aborted.load()) return false;
    if (moved) {
      num_idle = 0;
    } else if (++num_idle < 200) {
      std::this_thread::yield();
    } else {
      ::usleep(50);
    }
  }
}

}  // namespace fake

// From now on a kernel needs a whole GPU: two never run at once.
extern "C" void fakeNcclRunAlone(int is_alone) {
  fake::run_alone.store(is_alone != 0);
}
