// What every transport must carry: each collective, on 1 to 5 ranks, of 0 to
// a million elements, in lists of any cut, one after the other without a
// barrier in between.
#include <cstdint>
#include <vector>

#include "tests/cc/test_util.h"
#include "tf_ops/collectives/host/adasum.h"
#include "tf_ops/collectives/host/allgather.h"
#include "tf_ops/collectives/host/allreduce.h"
#include "tf_ops/collectives/host/alltoall.h"
#include "tf_ops/collectives/host/broadcast.h"
#include "tf_ops/collectives/host/reducescatter.h"

namespace hvd {
namespace {

#if HVD_SANITIZED
constexpr size_t kMost = 100000;  // sanitizers are slow
#else
constexpr size_t kMost = 1000000;
#endif
constexpr size_t kCounts[] = {0, 1, 7, 1000, kMost};

float ValueOf(size_t i, int rank) {
  return static_cast<float>(i % 13) + static_cast<float>(rank);
}

// Over `size` ranks.
float SumOfValues(size_t i, int size) {
  return static_cast<float>(i % 13) * static_cast<float>(size) +
         static_cast<float>(size * (size - 1) / 2);
}

// Cuts `values` into tensors of 1, 2, 4, ... elements and the rest, an empty
// one among them.
TensorList Cut(const std::vector<float>& in, std::vector<float>* out) {
  std::vector<ListTensor> list;
  list.push_back(ListTensor{in.data(), out->data(), 0});
  size_t begin = 0;
  for (size_t n = 1; begin < in.size(); n *= 2) {
    const size_t count =
        n > 1000 ? in.size() - begin : std::min(n, in.size() - begin);
    list.push_back(ListTensor{in.data() + begin, out->data() + begin,
                              count * sizeof(float)});
    begin += count;
  }
  return TensorList(list);
}

std::vector<float> InputOf(size_t count, int rank) {
  std::vector<float> input(count);
  for (size_t i = 0; i < count; ++i) input[i] = ValueOf(i, rank);
  return input;
}

ReduceSpec SumOf(Transport* t) {
  ReduceSpec spec;
  spec.num_ranks = t->size();
  return spec;
}

void TestAllreduce(Transport* t, size_t count, bool in_place) {
  std::vector<float> input = InputOf(count, t->rank());
  std::vector<float> output(count, -1.0f);
  std::vector<float>* to = in_place ? &input : &output;
  REQUIRE_OK(Allreduce(t, Cut(input, to), SumOf(t)));
  const int n = t->size();
  CHECK(Differences(*to, [n](size_t i) { return SumOfValues(i, n); }) == "");
}

void TestBroadcast(Transport* t, size_t count, int root_rank) {
  const std::vector<float> input = InputOf(count, t->rank());
  std::vector<float> output(count, -1.0f);
  REQUIRE_OK(Broadcast(t, Cut(input, &output), root_rank));
  CHECK(Differences(output, [root_rank](size_t i) {
          return ValueOf(i, root_rank);
        }) == "");
}

// Rank r gives (r % 3) * count elements: some give none.
void TestAllgather(Transport* t, size_t count) {
  const std::vector<float> input =
      InputOf(count * static_cast<size_t>(t->rank() % 3), t->rank());
  size_t total = 0;
  for (int r = 0; r < t->size(); ++r) total += count * size_t(r % 3);
  std::vector<float> output(total, -1.0f);
  std::vector<TensorList> by_rank;
  float* next = output.data();
  for (int r = 0; r < t->size(); ++r) {
    const size_t n = count * static_cast<size_t>(r % 3);
    by_rank.emplace_back(std::vector<ListTensor>{
        ListTensor{input.data(), next, n * sizeof(float)}});
    next += n;
  }
  REQUIRE_OK(Allgather(t, by_rank));
  std::vector<float> expected;
  for (int r = 0; r < t->size(); ++r) {
    const std::vector<float> part = InputOf(count * size_t(r % 3), r);
    expected.insert(expected.end(), part.begin(), part.end());
  }
  CHECK(Differences(output, [&](size_t i) { return expected[i]; }) == "");
}

// Rank r gives rank p (r + p) % 3 * count elements.
void TestAlltoall(Transport* t, size_t count) {
  const size_t size = static_cast<size_t>(t->size());
  const size_t rank = static_cast<size_t>(t->rank());
  ByteMatrix num_bytes(size, std::vector<size_t>(size));
  for (size_t from = 0; from < size; ++from) {
    for (size_t to = 0; to < size; ++to) {
      num_bytes[from][to] = (from + to) % 3 * count * sizeof(float);
    }
  }
  const std::vector<float> input = InputOf(2 * count, t->rank());
  std::vector<std::vector<float>> received(size);
  AlltoallLists lists;
  for (size_t r = 0; r < size; ++r) {
    lists.send.emplace_back(std::vector<ListTensor>{
        ListTensor{input.data(), nullptr, num_bytes[rank][r]}});
    received[r].assign((r + rank) % 3 * count, -1.0f);
    lists.recv.push_back(Cut(received[r], &received[r]));
  }
  REQUIRE_OK(Alltoall(t, lists, num_bytes));
  for (size_t r = 0; r < size; ++r) {
    CHECK(Differences(received[r], [r](size_t i) {
            return ValueOf(i, static_cast<int>(r));
          }) == "");
  }
}

// Rank r ends up with r % 3 * count elements, all of which it has itself.
void TestReducescatter(Transport* t, size_t count) {
  const int n = t->size();
  std::vector<std::vector<float>> values;
  std::vector<TensorList> by_rank;
  for (int r = 0; r < n; ++r) {
    values.push_back(InputOf(count * static_cast<size_t>(r % 3), t->rank()));
  }
  for (std::vector<float>& part : values) by_rank.push_back(Cut(part, &part));
  REQUIRE_OK(Reducescatter(t, by_rank, SumOf(t)));
  for (int r = 0; r < n; ++r) {
    CHECK(Differences(values[static_cast<size_t>(r)], [&](size_t i) {
            return r == t->rank() ? SumOfValues(i, n) : ValueOf(i, t->rank());
          }) == "");
  }
}

// Rank r has its rank + 1 where i % size is r, else 0: orthogonal vectors,
// which are added.
void TestAdasum(Transport* t, size_t count) {
  const size_t size = static_cast<size_t>(t->size());
  std::vector<float> values(count, 0.0f);
  for (size_t i = static_cast<size_t>(t->rank()); i < count; i += size) {
    values[i] = static_cast<float>(t->rank() + 1);
  }
  REQUIRE_OK(AdasumAllreduce(
      t, {ListTensor{values.data(), values.data(), count * sizeof(float)}},
      SumOf(t)));
  CHECK(Differences(values, [size](size_t i) {
          return static_cast<float>(i % size + 1);
        }) == "");
}

void TestCollectives(Transport* t) {
  for (size_t count : kCounts) {
    TestAllreduce(t, count, /*in_place=*/false);
    TestAllreduce(t, count, /*in_place=*/true);
    for (int root = 0; root < t->size(); ++root) TestBroadcast(t, count, root);
    TestAllgather(t, count);
    TestAlltoall(t, count);
    TestReducescatter(t, count);
    TestAdasum(t, count);
  }
  // Kinds and sizes in turn, so that the slots of one are still being read
  // when the next one begins.
  for (uint32_t i = 0; i < 120; ++i) {
    const size_t count = kCounts[(i * 7 + 3) % 5] / (1 + i % 4);
    const uint32_t kind = (i ^ i / 8) % 6;
    if (kind == 0) TestAllreduce(t, count, i % 4 == 0);
    if (kind == 1) TestBroadcast(t, count, static_cast<int>(i) % t->size());
    if (kind == 2) TestAllgather(t, count);
    if (kind == 3) TestAlltoall(t, count);
    if (kind == 4) TestReducescatter(t, count);
    if (kind == 5) TestAdasum(t, count);
  }
}

void TestControl(Transport* t) {
  // Three rings' worth, both ways at once: nobody may wait for the other.
  std::vector<uint8_t> sent(3 * kRingBytes);
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<uint8_t>(i);
  std::vector<std::vector<uint8_t>> received(static_cast<size_t>(t->size()));
  std::vector<int> peers;
  for (int r = 0; r < t->size(); ++r) {
    if (r != t->rank() && (r == 0 || t->rank() == 0)) peers.push_back(r);
  }
  for (int peer : peers) t->SendControl(peer, sent);
  size_t num_done = 0;
  bool flushed = false;
  while (!flushed || num_done < peers.size()) {
    const uint32_t ticket = t->DoorbellTicket();
    flushed = t->Flush();
    num_done = 0;
    bool any = false;
    for (int peer : peers) {
      std::vector<uint8_t>& bytes = received[static_cast<size_t>(peer)];
      any = t->ReceiveControl(peer, &bytes) || any;
      if (bytes.size() == sent.size()) ++num_done;
    }
    if (!any) {
      t->WaitDoorbell(ticket, std::chrono::milliseconds(100), false);
    }
  }
  for (int peer : peers) CHECK(received[static_cast<size_t>(peer)] == sent);
  // Leave only when all have what they need: an allreduce is a barrier.
  TestAllreduce(t, 1, false);
}

void TestDeadPeer(std::unique_ptr<Transport> t) {
  if (t->rank() == 1) std::_Exit(7);
  std::vector<float> value(1, 1.0f);
  const Status status = Allreduce(t.get(), Cut(value, &value), SumOf(t.get()));
  CHECK(status.code() == StatusCode::kPeerLost);
  CHECK(Contains(status.message(), "rank 1 (pid "));
  CHECK(Contains(status.message(), "died"));
  CHECK(t->CheckPeers().code() == StatusCode::kPeerLost);
}

// On 1 to 5 processes. Before any test that begins a thread.
void RunProcessesUpTo5(void (*test)(Transport*)) {
  for (int size = 1; size <= 5; ++size) {
    CheckAllExitedWell(
        RunProcesses(size, [test](std::unique_ptr<Transport> transport) {
          test(transport.get());
        }));
  }
}

TEST_CASE("processes: collectives of all kinds and sizes in turn") {
  RunProcessesUpTo5(TestCollectives);
}
TEST_CASE("processes: more control bytes than a ring holds, both ways") {
  RunProcessesUpTo5(TestControl);
}
TEST_CASE("processes: a dead peer is named") {
  const std::vector<int> statuses = RunProcesses(3, TestDeadPeer);
  CHECK(WEXITSTATUS(statuses[1]) == 7);
  CHECK(statuses[0] == 0);
  CHECK(statuses[2] == 0);
}
TEST_CASE("threads: collectives of all kinds and sizes in turn") {
  RunThreadsUpTo(5, TestCollectives);
}
TEST_CASE("threads: more control bytes than a ring holds, both ways") {
  RunThreadsUpTo(5, TestControl);
}

}  // namespace
}  // namespace hvd
