// Rows of allgathers and alltoalls: what the coordinator tells of them, and
// what a rank believes.
#include <cstdint>
#include <functional>
#include <vector>

#include "tests/cc/check.h"
#include "tf_ops/negotiation/message.h"
#include "tf_ops/negotiation/rows.h"
#include "tf_ops/negotiation/validate.h"

namespace hvd {
namespace {

TEST_CASE("rows must fit the request that they are for") {
  using Rows = std::vector<std::vector<int64_t>>;
  RequestParams params;
  params.kind = CollectiveKind::kAllgather;
  params.tensors = {{DataType::kFloat32, {2, 5}}};
  const auto code = [&params](const Rows& rows) {
    ResponseItem item;
    item.rows = rows;
    return CheckRows(params, RankPlace{/*rank=*/1, /*size=*/2, {}}, item)
        .code();
  };
  CHECK(code({{7, 2}}) == StatusCode::kOk);
  CHECK(code({}) == StatusCode::kInternal);
  CHECK(code({{7, 2}, {7, 2}}) == StatusCode::kInternal);
  CHECK(code({{7, 2, 1}}) == StatusCode::kInternal);
  CHECK(code({{7, 3}}) == StatusCode::kInternal);  // it has given 2
  CHECK(code({{-1, 2}}) == StatusCode::kInternal);
  CHECK(code({{INT64_MAX, 2}}) == StatusCode::kInternal);
  CHECK(code({{INT64_MAX / 20, 2}}) == StatusCode::kInternal);  // of 20 bytes
  params.kind = CollectiveKind::kAlltoall;
  CHECK(code({{7, 9}, {1, 1}}) == StatusCode::kOk);
  CHECK(code({{7, 9}}) == StatusCode::kInternal);
  CHECK(code({{7, 9}, {1}}) == StatusCode::kInternal);
  CHECK(code({{7, 9}, {1, 2}}) == StatusCode::kInternal);
  CHECK(code({{7, INT64_MAX}, {1, 1}}) == StatusCode::kInternal);
  params.kind = CollectiveKind::kAllreduce;
  CHECK(code({}) == StatusCode::kOk);
  CHECK(code({{2, 2}}) == StatusCode::kInternal);
}

// Of 3 ranks: ranks 0 and 2 are on one host; this is rank 2.
TEST_CASE("rows of a host must fit the request and each other") {
  RequestParams params;
  params.kind = CollectiveKind::kAlltoall;
  params.tensors = {{DataType::kFloat32, {7, 5}}};
  const RankPlace place{/*rank=*/2, /*size=*/3, {0, 2}};
  // Rank 0 keeps 100 rows: that needs no chunks.
  const HostRows good{{{100, 0, 2}, {3, 4, 0}}, {{100, 1, 3}, {2, 0, 0}}, 4};
  const auto fails = [&](const std::function<void(HostRows*)>& change) {
    ResponseItem item;
    item.host_rows = good;
    change(&item.host_rows);
    return CheckRows(params, place, item).code() == StatusCode::kInternal;
  };
  CHECK(!fails([](HostRows*) {}));
  CHECK(fails([](HostRows* rows) { rows->longest = 3; }));
  CHECK(fails([](HostRows* rows) { rows->longest = INT64_MAX; }));
  CHECK(fails([](HostRows* rows) { rows->sent.pop_back(); }));
  CHECK(fails([](HostRows* rows) { rows->received.pop_back(); }));
  CHECK(fails([](HostRows* rows) { rows->sent[1].pop_back(); }));
  CHECK(fails([](HostRows* rows) { rows->received[0].push_back(0); }));
  CHECK(fails([](HostRows* rows) { rows->sent[1][1] = 3; }));  // it has given 7
  CHECK(fails([](HostRows* rows) { rows->sent[0][1] = -1; }));
  CHECK(fails([](HostRows* rows) { rows->received[1][0] = 1; }));  // not 2
  CHECK(fails([](HostRows* rows) { *rows = HostRows(); }));
  // Those of all ranks are for one host.
  ResponseItem whole;
  whole.rows = {{100, 0, 2}, {1, 1, 0}, {3, 4, 0}};
  CHECK(CheckRows(params, place, whole).code() == StatusCode::kInternal);
  CHECK_OK(CheckRows(params, RankPlace{2, 3, {}}, whole));
  whole.host_rows = good;
  CHECK(CheckRows(params, RankPlace{2, 3, {}}, whole).code() ==
        StatusCode::kInternal);
}

// Host 1 has ranks 1 and 3 of 4.
TEST_CASE("a host is told what its ranks exchange in an alltoall") {
  const std::vector<std::vector<int64_t>> rows{
      {99, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 98, 10}, {11, 12, 13, 97}};
  const HostRows host = AlltoallRows(&rows).Of({1, 3});
  CHECK(host.sent[0] == rows[1]);
  CHECK(host.sent[1] == rows[3]);
  CHECK(host.received[0] == std::vector<int64_t>{1, 5, 9, 12});
  CHECK(host.received[1] == std::vector<int64_t>{3, 7, 10, 97});
  CHECK(host.longest == 13);  // from a rank to another one
}

}  // namespace
}  // namespace hvd
