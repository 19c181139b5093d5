#include "tf_ops/negotiation/message.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tf_ops/common/codec.h"

namespace hvd {
namespace {

template <typename T>
void WriteList(const std::vector<T>& values, ByteWriter* w) {
  w->Put(static_cast<uint32_t>(values.size()));
  for (T value : values) w->Put(value);
}

template <typename T>
void ReadList(ByteReader* r, std::vector<T>* values) {
  values->resize(r->GetCount(sizeof(T)));
  for (T& value : *values) value = r->Get<T>();
}

// At most one number of at least 0 for each rank.
void ReadRanks(ByteReader* r, const MessageLimits& limits,
               std::vector<int32_t>* ranks) {
  ReadList(r, ranks);
  r->Expect(ranks->size() <= static_cast<size_t>(limits.num_ranks));
  for (int32_t rank : *ranks) r->Expect(rank >= 0);
}

// A tensor whose bytes can be counted, as can those of its rows if it has
// none.
void Read(ByteReader* r, TensorParams* t) {
  t->dtype = r->GetUpTo(static_cast<DataType>(kNumDataTypes - 1));
  ReadList(r, &t->shape);
  r->Expect(t->shape.size() <= kMaxDimensions);
  if (!r->ok()) return;
  auto num_bytes = static_cast<int64_t>(ElementBytes(t->dtype));
  for (int64_t dim : t->shape) {
    r->Expect(dim >= 0);
    const int64_t factor = std::max<int64_t>(dim, 1);
    r->Expect(!__builtin_mul_overflow(num_bytes, factor, &num_bytes));
  }
}

void Write(const Status& status, ByteWriter* w) {
  w->Put(status.code());
  w->PutString(status.message());
}

void Read(ByteReader* r, Status* status) {
  const StatusCode code = r->GetUpTo(StatusCode::kInternal);
  *status = Status(code, r->GetString());
}

void Write(const RequestParams& p, ByteWriter* w) {
  w->Put(p.kind);
  w->Put(p.process_set_id);
  w->Put(p.op);
  w->Put(p.root_rank);
  w->Put(p.prescale);
  w->Put(p.postscale);
  w->Put(p.wire_format);
  w->Put(p.average);
  w->Put(p.equal_rows);
  w->Put(p.device);
  Write(p.failure, w);
  WriteList(p.splits, w);
  w->Put(static_cast<uint32_t>(p.tensors.size()));
  for (const TensorParams& t : p.tensors) {
    w->Put(t.dtype);
    WriteList(t.shape, w);
  }
}

void Read(ByteReader* r, RequestParams* p) {
  p->kind = r->GetUpTo(CollectiveKind::kJoin);
  p->process_set_id = r->Get<int32_t>();
  p->op = r->GetUpTo(ReduceOp::kProduct);
  p->root_rank = r->Get<int32_t>();
  p->prescale = r->Get<double>();
  p->postscale = r->Get<double>();
  p->wire_format = r->Get<WireFormat>();
  r->Expect(IsWireFormat(static_cast<int64_t>(p->wire_format)));
  p->average = r->Get<uint8_t>() != 0;
  p->equal_rows = r->Get<uint8_t>() != 0;
  p->device = r->GetUpTo(DeviceKind::kSecondGpu);
  Read(r, &p->failure);
  ReadList(r, &p->splits);
  p->tensors.resize(r->GetCount(5));
  int64_t total = 0;
  for (TensorParams& t : p->tensors) {
    Read(r, &t);
    if (!r->ok()) return;
    r->Expect(!__builtin_add_overflow(total, t.num_bytes(), &total));
  }
}

void Write(const std::vector<IdRun>& ids, ByteWriter* w) {
  w->Put(static_cast<uint32_t>(ids.size()));
  for (const IdRun& run : ids) {
    w->Put(run.first);
    w->Put(run.count);
  }
}

// At most `max_ids`, from 1 on: 0 is no id.
void ReadIds(ByteReader* r, uint64_t max_ids, std::vector<IdRun>* ids) {
  ids->resize(r->GetCount(2 * sizeof(uint32_t)));
  for (IdRun& run : *ids) {
    run.first = r->Get<uint32_t>();
    run.count = r->Get<uint32_t>();
    r->Expect(run.first > 0 && run.count > 0);
    r->Expect(run.count - 1 <= UINT32_MAX - run.first);
  }
  r->Expect(NumIds(*ids) <= max_ids);
}

// One value for each rank in each list.
void ReadRows(ByteReader* r, const MessageLimits& limits,
              std::vector<std::vector<int64_t>>* rows) {
  const size_t num_ranks = static_cast<size_t>(limits.num_ranks);
  rows->resize(r->GetCount(sizeof(uint32_t) + num_ranks * sizeof(int64_t)));
  for (std::vector<int64_t>& list : *rows) {
    ReadList(r, &list);
    r->Expect(list.size() == num_ranks);
  }
}

void WriteRows(const std::vector<std::vector<int64_t>>& rows, ByteWriter* w) {
  w->Put(static_cast<uint32_t>(rows.size()));
  for (const std::vector<int64_t>& list : rows) WriteList(list, w);
}

void Write(const HostRows& rows, ByteWriter* w) {
  WriteRows(rows.sent, w);
  if (rows.sent.empty()) return;
  WriteRows(rows.received, w);
  w->Put(rows.longest);
}

void Read(ByteReader* r, const MessageLimits& limits, HostRows* rows) {
  ReadRows(r, limits, &rows->sent);
  if (rows->sent.empty()) return;
  ReadRows(r, limits, &rows->received);
  rows->longest = r->Get<int64_t>();
}

// Known requests go as runs of ids: (0, number of runs, runs), the others as
// (1, item) or, with parameters, (2, item, parameters).
void Write(const std::vector<ResponseItem>& items, ByteWriter* w) {
  size_t next = 0;
  while (next < items.size()) {
    if (items[next].cached_id != 0) {
      std::vector<IdRun> runs;
      for (; next < items.size() && items[next].cached_id != 0; ++next) {
        AppendId(items[next].cached_id, &runs);
      }
      w->Put(uint8_t{0});
      Write(runs, w);
      continue;
    }
    const ResponseItem& item = items[next++];
    w->Put(static_cast<uint8_t>(item.params == nullptr ? 1 : 2));
    w->PutString(item.name);
    w->Put(item.new_id);
    WriteRows(item.rows, w);
    Write(item.host_rows, w);
    if (item.params != nullptr) Write(*item.params, w);
  }
}

void Read(ByteReader* r, const MessageLimits& limits,
          std::vector<ResponseItem>* items) {
  uint64_t max_ids = static_cast<uint64_t>(std::max(limits.cache_capacity, 0));
  while (r->ok() && !r->at_end()) {
    const uint8_t form = r->GetUpTo(uint8_t{2});
    if (form == 0) {
      std::vector<IdRun> runs;
      ReadIds(r, max_ids, &runs);
      if (!r->ok()) return;
      max_ids -= NumIds(runs);
      for (const IdRun& run : runs) {
        for (uint32_t i = 0; i < run.count; ++i) {
          items->emplace_back();
          items->back().cached_id = run.first + i;
        }
      }
      continue;
    }
    items->emplace_back();
    ResponseItem& item = items->back();
    item.name = r->GetString();
    item.new_id = r->Get<uint32_t>();
    ReadRows(r, limits, &item.rows);
    Read(r, limits, &item.host_rows);
    if (form == 2) {
      RequestParams params;
      Read(r, &params);
      item.params = std::make_shared<const RequestParams>(std::move(params));
    }
  }
  r->Expect(!items->empty());
}

void WriteBody(const RankMessage& m, ByteWriter* w) {
  w->Put(m.type);
  WriteList(m.ranks, w);
  switch (m.type) {
    case RankMessage::Type::kRequest:
      w->Put(m.last_rank);
      w->Put(m.step);
      w->PutString(m.name);
      Write(m.params, w);
      return;
    case RankMessage::Type::kDuplicate:
      w->PutString(m.name);
      return;
    case RankMessage::Type::kReady:
      w->Put(m.last_rank);
      w->Put(m.step);
      Write(m.ids, w);
      return;
    case RankMessage::Type::kForgotten:
      Write(m.ids, w);
      return;
    case RankMessage::Type::kJoin:
      w->Put(m.average_over_active);
      return;
    case RankMessage::Type::kElsewhere:
      w->PutString(m.name);
      w->Put(m.process_set_id);
      return;
  }
}

void ReadBody(ByteReader* r, const MessageLimits& limits, RankMessage* m) {
  m->type = r->GetUpTo(RankMessage::Type::kElsewhere);
  ReadRanks(r, limits, &m->ranks);
  switch (m->type) {
    case RankMessage::Type::kRequest:
      m->last_rank = r->Get<int32_t>();
      m->step = r->Get<TrainingStep>();
      m->name = r->GetString();
      Read(r, &m->params);
      return;
    case RankMessage::Type::kDuplicate:
      m->name = r->GetString();
      return;
    case RankMessage::Type::kReady:
      m->last_rank = r->Get<int32_t>();
      m->step = r->Get<TrainingStep>();
      ReadIds(r, kMaxIds, &m->ids);
      return;
    case RankMessage::Type::kForgotten:
      ReadIds(r, kMaxIds, &m->ids);
      return;
    case RankMessage::Type::kJoin:
      m->average_over_active = r->Get<uint8_t>() != 0;
      return;
    case RankMessage::Type::kElsewhere:
      m->name = r->GetString();
      m->process_set_id = r->Get<int32_t>();
      return;
  }
  r->Expect(false);  // 0
}

void Write(const Execution& execution, ByteWriter* w) {
  w->Put(execution.divisor);
  Write(execution.items, w);
}

void Read(ByteReader* r, const MessageLimits& limits, Execution* execution) {
  execution->divisor = r->GetUpTo(int32_t{limits.num_ranks});
  Read(r, limits, &execution->items);
}

void Write(const Failure& failure, ByteWriter* w) {
  w->PutString(failure.name);
  Write(failure.error, w);
  w->Put(failure.is_misplaced);
  WriteList(failure.ranks, w);
}

void Read(ByteReader* r, const MessageLimits& limits, Failure* failure) {
  failure->name = r->GetString();
  Read(r, &failure->error);
  failure->is_misplaced = r->Get<uint8_t>() != 0;
  ReadRanks(r, limits, &failure->ranks);
}

void Write(const Eviction& eviction, ByteWriter* w) { Write(eviction.ids, w); }

void Write(const JoinEnd& end, ByteWriter* w) {
  w->Put(end.last_rank);
  Write(end.error, w);
  WriteList(end.ranks, w);
}

void Read(ByteReader* r, const MessageLimits& limits, JoinEnd* end) {
  end->last_rank = r->Get<int32_t>();
  Read(r, &end->error);
  ReadRanks(r, limits, &end->ranks);
}

void Write(const Query& query, ByteWriter* w) {
  w->PutString(query.name);
  WriteList(query.ranks, w);
  WriteList(query.waiting, w);
}

void Read(ByteReader* r, const MessageLimits& limits, Query* query) {
  query->name = r->GetString();
  ReadRanks(r, limits, &query->ranks);
  ReadRanks(r, limits, &query->waiting);
}

void Write(const Tunables& tuned, ByteWriter* w) {
  w->Put(tuned.fusion_threshold_bytes);
  w->Put(tuned.cycle_time_us);
}

void Read(ByteReader* r, Tunables* tuned) {
  tuned->fusion_threshold_bytes = r->Get<int64_t>();
  tuned->cycle_time_us = r->Get<int64_t>();
  r->Expect(tuned->fusion_threshold_bytes >= 0);
  r->Expect(tuned->cycle_time_us >= 0 &&
            tuned->cycle_time_us <= kMaxCycleMicroseconds);
}

// The first byte is the number of the alternative, from 1 on.
void WriteBody(const Response& response, ByteWriter* w) {
  w->Put(static_cast<uint8_t>(response.index() + 1));
  std::visit([w](const auto& one) { Write(one, w); }, response);
}

void ReadBody(ByteReader* r, const MessageLimits& limits, Response* response) {
  switch (r->Get<uint8_t>()) {
    case 1:
      return Read(r, limits, &response->emplace<Execution>());
    case 2:
      return Read(r, limits, &response->emplace<Failure>());
    case 3:
      return ReadIds(r, kMaxIds, &response->emplace<Eviction>().ids);
    case 4:
      return Read(r, limits, &response->emplace<JoinEnd>());
    case 5:
      return Read(r, limits, &response->emplace<Query>());
    case 6:
      return Read(r, &response->emplace<Tunables>());
    default:
      r->Expect(false);
  }
}

template <typename Message>
void EncodeFrame(const Message& message, std::vector<uint8_t>* bytes) {
  constexpr size_t kMostlyEnough = 64;
  const size_t begin = bytes->size();
  bytes->reserve(begin + kMostlyEnough);
  ByteWriter writer(bytes);
  writer.Put(uint32_t{0});  // the length, below
  WriteBody(message, &writer);
  const uint32_t count =
      static_cast<uint32_t>(bytes->size() - begin - sizeof(uint32_t));
  std::memcpy(bytes->data() + begin, &count, sizeof(count));
}

template <typename Message>
Status DecodeFrame(const std::vector<uint8_t>& bytes, size_t* offset,
                   const MessageLimits& limits, Message* message, bool* found) {
  *found = false;
  ByteReader frame(bytes.data() + *offset, bytes.size() - *offset);
  const uint32_t count = frame.Get<uint32_t>();
  if (!frame.ok()) return Status::Ok();
  const size_t begin = *offset + sizeof(uint32_t);
  const bool is_whole = bytes.size() - begin >= count;
  if (!is_whole && count <= kMaxFrameBytes) return Status::Ok();
  ByteReader body(bytes.data() + begin, is_whole ? count : 0);
  *message = Message();
  body.Expect(count <= kMaxFrameBytes);
  if (body.ok()) ReadBody(&body, limits, message);
  if (!body.ok() || !body.at_end()) {
    return Status::Internal("a control message of " + std::to_string(count) +
                            " bytes makes no sense");
  }
  *offset = begin + count;
  *found = true;
  return Status::Ok();
}

}  // namespace

bool Concerns(const std::vector<int32_t>& ranks, int rank) {
  return ranks.empty() ||
         std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

void AppendId(uint32_t id, std::vector<IdRun>* runs) {
  if (!runs->empty() && runs->back().first + runs->back().count == id) {
    ++runs->back().count;
  } else {
    runs->push_back(IdRun{id, 1});
  }
}

uint64_t NumIds(const std::vector<IdRun>& runs) {
  uint64_t total = 0;
  for (const IdRun& run : runs) total += run.count;
  return total;
}

void Encode(const RankMessage& message, std::vector<uint8_t>* bytes) {
  EncodeFrame(message, bytes);
}

void Encode(const Response& response, std::vector<uint8_t>* bytes) {
  EncodeFrame(response, bytes);
}

Status Decode(const std::vector<uint8_t>& bytes, size_t* offset,
              const MessageLimits& limits, RankMessage* message, bool* found) {
  return DecodeFrame(bytes, offset, limits, message, found);
}

Status Decode(const std::vector<uint8_t>& bytes, size_t* offset,
              const MessageLimits& limits, Response* response, bool* found) {
  return DecodeFrame(bytes, offset, limits, response, found);
}

}  // namespace hvd
