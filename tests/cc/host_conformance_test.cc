// The contract of each role of a host group. Ranks are processes over shared
// memory, or threads.
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/cc/test_util.h"
#include "tf_ops/common/futex.h"
#include "tf_ops/host/control_channel.h"
#include "tf_ops/host/crowd.h"
#include "tf_ops/host/doorbell.h"
#include "tf_ops/host/first_rank.h"
#include "tf_ops/host/host_slabs.h"
#include "tf_ops/host/membership.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Far longer than a wake-up takes, far shorter than a test may take.
constexpr seconds kLong{20};

// Returns when all ranks have come. Waits again if a wait ends early, as for a
// rank that is gone or after an interrupt.
void Barrier(HostSlabs* slabs) {
  const uint32_t value = slabs->next_chunk() + 1;
  slabs->AdvanceChunks(1);
  slabs->Post(Flag::kIn, value);
  const Clock::time_point end = Clock::now() + kLong;
  Status status;
  do {
    status = slabs->WaitAll(Flag::kIn, value);
  } while (!status.ok() && Clock::now() < end);
  REQUIRE_OK(status);
}

// ---- HostSlabs ----

uint32_t WordOf(int rank, uint32_t chunk) {
  return 1000 * chunk + static_cast<uint32_t>(rank);
}

void TestSlabsCarryData(HostGroup* group) {
  HostSlabs* const slabs = group->slabs();
  for (uint32_t chunk = 0; chunk < 5 * kNumSlots; ++chunk) {
    const uint32_t own = WordOf(slabs->rank(), chunk);
    std::memcpy(slabs->slot(slabs->rank(), chunk), &own, sizeof(own));
    slabs->Post(Flag::kIn, chunk + 1);
    for (int peer = 0; peer < slabs->size(); ++peer) {
      if (peer == slabs->rank()) continue;
      CHECK_OK(slabs->Wait(peer, Flag::kIn, chunk + 1));
      uint32_t theirs = 0;
      std::memcpy(&theirs, slabs->slot(peer, chunk), sizeof(theirs));
      CHECK(theirs == WordOf(peer, chunk));
    }
    CHECK(slabs->next_chunk() == chunk);
    slabs->AdvanceChunks(1);
  }
  // Each flag has its own count.
  slabs->Post(Flag::kOut, 7);
  CHECK_OK(slabs->WaitAll(Flag::kOut, 7));
  Barrier(slabs);
}

void TestWaitsEnd(HostGroup* group) {
  HostSlabs* const slabs = group->slabs();
  if (slabs->rank() == 1) slabs->Post(Flag::kOut, 1);
  Barrier(slabs);
  if (slabs->rank() == 0) {
    group->set_wait_timeout(milliseconds(30));
    const Status late = slabs->Wait(1, Flag::kOut, 2);
    CHECK(late.code() == StatusCode::kStalled);
    CHECK(Contains(late.message(), "rank 1"));
    CHECK(Contains(late.message(), "(rank 0 waits)"));

    group->set_wait_timeout(kLong);
    std::thread other([group] {
      std::this_thread::sleep_for(milliseconds(20));
      group->membership()->Interrupt("enough");
    });
    const Status interrupted = slabs->Wait(1, Flag::kOut, 2);
    CHECK(interrupted.code() == StatusCode::kShutdown);
    CHECK(interrupted.message() == "enough");
    other.join();
    CHECK_OK(slabs->Wait(1, Flag::kOut, 1));  // what is there already
  }
  Barrier(slabs);
}

void TestWhatALostRankHasPostedCounts(HostGroup* group) {
  HostSlabs* const slabs = group->slabs();
  if (slabs->rank() == 1) {
    slabs->Post(Flag::kOut, 1);
    group->membership()->Leave("no more work");
  }
  Barrier(slabs);
  if (slabs->rank() != 1) {
    CHECK_OK(slabs->Wait(1, Flag::kOut, 1));
    const Status status = slabs->Wait(1, Flag::kOut, 2);
    CHECK(status.code() == StatusCode::kPeerLost);
    CHECK(Contains(status.message(), "left the job: no more work"));
  }
  Barrier(slabs);
}

// ---- ControlChannel ----

std::vector<int> PeersOf(int rank, int size) {
  std::vector<int> peers;
  for (int r = 0; r < size; ++r) {
    if (r != rank && (r == 0 || rank == 0)) peers.push_back(r);
  }
  return peers;
}

void TestControl(HostGroup* group) {
  ControlChannel* const control = group->control();
  Doorbell* const doorbell = group->doorbell();
  // Three rings' worth, both ways at once: nobody may wait for the other.
  std::vector<uint8_t> sent(3 * kRingBytes);
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<uint8_t>(i);
  std::vector<std::vector<uint8_t>> received(
      static_cast<size_t>(control->size()));
  const std::vector<int> peers = PeersOf(control->rank(), control->size());
  for (int peer : peers) control->Send(peer, sent);
  size_t num_done = 0;
  while (control->has_unsent() || num_done < peers.size()) {
    const uint32_t ticket = doorbell->Ticket();
    CHECK_OK(control->Flush());
    num_done = 0;
    bool any = false;
    for (int peer : peers) {
      std::vector<uint8_t>& bytes = received[static_cast<size_t>(peer)];
      bool received_some = false;
      CHECK_OK(control->Receive(peer, &bytes, &received_some));
      any = any || received_some;
      if (bytes.size() == sent.size()) ++num_done;
    }
    if (!any) doorbell->Wait(ticket, milliseconds(100), /*spin=*/false);
  }
  for (int peer : peers) CHECK(received[static_cast<size_t>(peer)] == sent);
  Barrier(group->slabs());
}

void TestFlushAllWaitsForReaders(HostGroup* group) {
  ControlChannel* const control = group->control();
  const std::vector<uint8_t> sent(3 * kRingBytes, 9);
  if (control->rank() == 0) {
    for (int peer = 1; peer < control->size(); ++peer) {
      control->Send(peer, sent);
    }
    CHECK_OK(control->FlushAll());
  } else {
    std::vector<uint8_t> received;
    bool received_some = false;
    Status status;
    while (status.ok() && received.size() < sent.size()) {
      status = control->Receive(0, &received, &received_some);
    }
    CHECK_OK(status);
    CHECK(received == sent);
  }
  Barrier(group->slabs());
}

void TestFlushAllEnds(HostGroup* group) {
  ControlChannel* const control = group->control();
  if (control->rank() == 0) {
    control->Send(1, std::vector<uint8_t>(2 * kRingBytes, 9));
    group->set_wait_timeout(milliseconds(30));
    const Status late = control->FlushAll();
    CHECK(late.code() == StatusCode::kStalled);
    CHECK(Contains(late.message(), "rank 1"));
    group->set_wait_timeout(kLong);
  }
  Barrier(group->slabs());
  if (control->rank() == 1) group->membership()->Leave("no more work");
  Barrier(group->slabs());
  // It drops what a rank that is gone does not read.
  if (control->rank() == 0) CHECK_OK(control->FlushAll());
  Barrier(group->slabs());
}

// ---- Doorbell ----

void TestDoorbell(HostGroup* group) {
  Doorbell* const doorbell = group->doorbell();
  const int next = (group->rank() + 1) % group->size();
  // A ring after the ticket ends the wait at once, and one before does not.
  doorbell->RingOwn();
  uint32_t ticket = doorbell->Ticket();
  doorbell->Wait(ticket, milliseconds(10), /*spin=*/false);
  CHECK(doorbell->Ticket() == ticket);
  doorbell->RingOwn();
  Clock::time_point begin = Clock::now();
  doorbell->Wait(ticket, kLong, /*spin=*/false);
  CHECK(Clock::now() - begin < kLong / 2);

  // A ring wakes a rank that sleeps, and one that watches.
  for (const bool watches : {false, true}) {
    ticket = doorbell->Ticket();
    if (watches) doorbell->BeginWatch();
    Barrier(group->slabs());
    std::this_thread::sleep_for(milliseconds(10));
    doorbell->Ring(next);
    begin = Clock::now();
    if (watches) {
      CHECK(doorbell->Watch(ticket, begin + kLong));
      ticket = doorbell->Ticket();
      CHECK(!doorbell->Watch(ticket, Clock::now() + milliseconds(5)));
      doorbell->EndWatch();
    } else {
      while (doorbell->Ticket() == ticket) {
        doorbell->Wait(ticket, kLong, /*spin=*/true);
      }
    }
    CHECK(Clock::now() - begin < kLong / 2);
    Barrier(group->slabs());
  }
}

// ---- Crowd ----

void TestCrowd(HostGroup* group) {
  Crowd* const crowd = group->crowd();
  CHECK(!crowd->is_crowded());
  Barrier(group->slabs());
  crowd->Set(true);
  crowd->Set(true);  // counts once
  Barrier(group->slabs());
  if (group->rank() != 0) crowd->Set(false);
  Barrier(group->slabs());
  CHECK(crowd->is_crowded());  // rank 0 still is
  Barrier(group->slabs());
  crowd->Set(false);
  Barrier(group->slabs());
  CHECK(!crowd->is_crowded());
}

// ---- Membership ----

void TestEverybodyIsThere(HostGroup* group) {
  const Membership& membership = *group->membership();
  const Members& members = membership.members();
  CHECK(members.rank() == group->rank());
  CHECK(members.size() == group->size());
  CHECK(membership.epoch() == 0);
  CHECK(members.own_global_rank() == members.rank());
  for (int rank = 0; rank < members.size(); ++rank) {
    CHECK(members.global_rank(rank) == rank);
    CHECK(!membership.IsGone(rank));
    CHECK(Contains(members.label(rank), "rank " + std::to_string(rank)));
  }
  CHECK_OK(membership.CheckPeers());
  CHECK_OK(membership.CheckInterrupt());
  Barrier(group->slabs());
}

void TestBrokenRankIsQuoted(HostGroup* group) {
  Membership* const membership = group->membership();
  const uint32_t ticket = group->doorbell()->Ticket();
  Barrier(group->slabs());
  if (group->rank() == 2)
    membership->DeclareBroken(Status::Internal("out of luck"));
  Barrier(group->slabs());
  CHECK(group->doorbell()->Ticket() != ticket);
  CHECK(membership->IsGone(2));
  const Status status = membership->CheckPeers();
  if (group->rank() == 2) {
    CHECK_OK(status);  // who has given up needs nobody
  } else {
    CHECK(status.code() == StatusCode::kPeerLost);
    CHECK(Contains(status.message(), "rank 2"));
    CHECK(Contains(status.message(), "gave up: out of luck"));
  }
  Barrier(group->slabs());
}

// Rank 0 may still have to tell the others to run what a rank finished before
// it left.
void TestRankZeroSaysWhoLeft(HostGroup* group) {
  Membership* const membership = group->membership();
  if (group->rank() == 2) membership->Leave("no more work");
  Barrier(group->slabs());
  const Status status = membership->CheckPeers();
  if (group->rank() == 0) {
    CHECK(status.code() == StatusCode::kPeerLost);
    CHECK(Contains(status.message(), "rank 2"));
    CHECK(Contains(status.message(), "left the job: no more work"));
  } else {
    CHECK_OK(status);
  }
  Barrier(group->slabs());
  if (group->rank() == 0) membership->DeclareBroken(status);
  Barrier(group->slabs());
  if (group->rank() == 1) {
    CHECK(Contains(membership->CheckPeers().message(),
                   "left the job: no more work"));
  }
  Barrier(group->slabs());
}

void TestDeathIsMarked(HostGroup* group) {
  Membership* const membership = group->membership();
  if (group->rank() == 1) {
    membership->NoteExitReason("first words");
    membership->NoteExitReason("second words");
  }
  Barrier(group->slabs());
  if (group->rank() != 1) {
    const uint32_t ticket = group->doorbell()->Ticket();
    membership->MarkDead(1);
    CHECK(group->doorbell()->Ticket() != ticket);
    CHECK(membership->IsGone(1));
    const std::string text = membership->CheckPeers().message();
    CHECK(Contains(text, "rank 1"));
    CHECK(Contains(text, "died; its last words: first words"));
  }
  Barrier(group->slabs());
}

// ---- Each of them, everywhere ----

struct Contract {
  const char* name;
  int min_size;
  void (*test)(HostGroup*);
};

const Contract kContracts[] = {
    {"slabs carry data", 1, TestSlabsCarryData},
    {"waits end", 2, TestWaitsEnd},
    {"what a lost rank has posted counts", 2, TestWhatALostRankHasPostedCounts},
    {"more control bytes than a ring holds, both ways", 1, TestControl},
    {"FlushAll waits for readers", 1, TestFlushAllWaitsForReaders},
    {"FlushAll ends", 2, TestFlushAllEnds},
    {"a ring wakes", 1, TestDoorbell},
    {"a crowd is of all ranks", 1, TestCrowd},
    {"everybody is there", 1, TestEverybodyIsThere},
    {"a broken rank is quoted", 3, TestBrokenRankIsQuoted},
    {"rank 0 says who left", 3, TestRankZeroSaysWhoLeft},
    {"a death is marked", 2, TestDeathIsMarked},
};

// Processes first: before any test that begins a thread.
TEST_CASE("processes") {
  for (const Contract& contract : kContracts) {
    SUBCASE(contract.name) {
      for (int size = contract.min_size; size <= 5; ++size) {
        CheckAllExitedWell(
            RunProcesses(size, [&](std::unique_ptr<HostGroup> group) {
              contract.test(group.get());
            }));
      }
    }
  }
}

TEST_CASE("processes: a dead one is named") {
  const std::vector<int> statuses =
      RunProcesses(3, [](std::unique_ptr<HostGroup> group) {
        if (group->rank() == 1) std::_Exit(7);
        const Status status = group->slabs()->Wait(1, Flag::kIn, 1);
        CHECK(status.code() == StatusCode::kPeerLost);
        CHECK(Contains(status.message(), "rank 1 (pid "));
        CHECK(Contains(status.message(), "died"));
        CHECK(group->membership()->CheckPeers().code() ==
              StatusCode::kPeerLost);
      });
  CHECK(WEXITSTATUS(statuses[1]) == 7);
  CHECK(statuses[0] == 0);
  CHECK(statuses[2] == 0);
}

TEST_CASE("threads") {
  for (const Contract& contract : kContracts) {
    SUBCASE(contract.name) {
      for (int size = contract.min_size; size <= 5; ++size) {
        RunThreads(size, contract.test);
      }
    }
  }
}

// Rank 2 of the job is rank 0 of the set, and rank 0 its rank 1.
TEST_CASE("a process set knows what its job knows") {
  auto jobs = CreateInMemory(3, /*epoch=*/5);
  auto sets = CreateInMemory(2, /*epoch=*/5);
  const std::shared_ptr<HostGroup> job = std::move(jobs[2]);
  Membership* const set = sets[0]->membership();
  set->BindToJob({job, job->membership()}, {2, 0});
  CHECK(set->epoch() == 5);
  CHECK(job->membership()->epoch() == 5);
  CHECK(set->members().own_global_rank() == 2);
  CHECK(set->members().global_rank(1) == 0);
  CHECK(set->members().label(0) == "rank 2");
  CHECK_OK(set->CheckPeers());
  const uint32_t ticket = sets[0]->doorbell()->Ticket();
  job->membership()->MarkDead(1);  // not of the set
  CHECK(sets[0]->doorbell()->Ticket() != ticket);
  CHECK(Contains(set->CheckPeers().message(), "rank 1 died"));
  CHECK(!set->IsGone(1));
  job->membership()->MarkDead(0);
  CHECK(set->IsGone(1));
  CHECK(Contains(set->CheckPeers().message(), "rank 0 died"));
}

// It mostly leaves because of the loss, and others may not know yet.
TEST_CASE("a rank that leaves after a loss tells of the loss") {
  auto jobs = CreateInMemory(3);
  jobs[1]->membership()->MarkDead(2);
  jobs[1]->membership()->Leave("shutdown() was called");
  CHECK(jobs[0]->membership()->CheckPeers().message() == "rank 2 died");
}

TEST_CASE("a rank that leaves tells of a loss that a process set has heard") {
  auto jobs = CreateInMemory(2);
  auto sets = CreateInMemory(RegionShape(2, /*with_wire=*/true));
  const std::shared_ptr<HostGroup> job = std::move(jobs[1]);
  sets[1]->membership()->BindToJob({job, job->membership()}, {0, 1});
  sets[0]->membership()->other_hosts().NoteLost("rank 7 died");
  job->membership()->Leave("shutdown() was called");
  CHECK(jobs[0]->membership()->CheckPeers().message() == "rank 7 died");
}

TEST_CASE("the wire is blamed only if nothing else explains its end") {
  auto groups = CreateInMemory(RegionShape(2, /*with_wire=*/true));
  for (const auto& group : groups)
    group->membership()->members().SetPlace("b", {4, 5});
  Membership* const last = groups[1]->membership();
  last->members().SetPid(2, 33);
  last->MarkDead(2, "SIGSEGV");
  const std::string wire = "the wire of host b (pid 33) died (SIGSEGV)";
  CHECK(last->CheckWaitFor(2).message() == wire);
  groups[0]->membership()->other_hosts().NoteLost("rank 0 is gone");
  CHECK(last->CheckWaitFor(2).message() == "rank 0 is gone");
  last->MarkDead(0);
  CHECK(last->CheckWaitFor(2).message() == "rank 4 died");
}

TEST_CASE("a leader that has stopped is lost") {
  auto groups = CreateInMemory(RegionShape(2, /*with_wire=*/true));
  FirstRank leader(groups[0]->membership());
  const FirstRank other(groups[1]->membership());
  const FirstRank wire(groups[2]->membership());
  const Clock::time_point now = Clock::now();
  CHECK_OK(other.CheckAlive(now));
  leader.NoteAlive(now, std::chrono::milliseconds(1500));
  CHECK_OK(other.CheckAlive(now + std::chrono::milliseconds(1400)));
  const Clock::time_point late = now + std::chrono::milliseconds(1600);
  CHECK(other.CheckAlive(late).code() == StatusCode::kPeerLost);
  CHECK(Contains(other.CheckAlive(late).message(),
                 "has stopped: no heartbeat for 1.5 s"));
  CHECK_OK(leader.CheckAlive(late));
  // The wire, which may see it first, knows of the ranks what they have told.
  CHECK(Contains(wire.CheckAlive(late).message(),
                 "rank 0, which speaks for its host, has stopped"));
  Members& members = groups[0]->membership()->members();
  members.SetPlace("b", {4, 5});
  members.SetPid(0, 33);
  CHECK(Contains(wire.CheckAlive(late).message(),
                 "rank 4 (host b, pid 33), which speaks for its host"));
}

// A rank that cannot see deaths waits for nobody, in any process set.
TEST_CASE("a rank that cannot see deaths does not wait") {
  auto jobs = CreateInMemory(2);
  auto sets = CreateInMemory(2);
  const std::shared_ptr<HostGroup> job = std::move(jobs[0]);
  const std::shared_ptr<HostGroup> set = std::move(sets[0]);
  set->membership()->BindToJob({job, job->membership()}, {0, 1});
  const uint32_t ticket = set->doorbell()->Ticket();
  job->membership()->MarkBlind("it is dark");
  CHECK(set->doorbell()->Ticket() != ticket);
  for (const std::shared_ptr<HostGroup>& group : {job, set}) {
    group->control()->Send(1, std::vector<uint8_t>(2 * kRingBytes));
    for (const Status& status : {group->membership()->CheckPeers(),
                                 group->slabs()->Wait(1, Flag::kIn, 1),
                                 group->control()->FlushAll()}) {
      CHECK(status.code() == StatusCode::kInternal);
      CHECK(Contains(status.message(), "rank 0 can no longer see"));
      CHECK(Contains(status.message(), "it is dark"));
    }
    CHECK(!group->membership()->IsGone(1));
  }
}

}  // namespace
}  // namespace hvd
