#include "tf_ops/collectives/hierarchical/hierarchical_collectives.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "tf_ops/collectives/hierarchical/chunk_pipeline.h"
#include "tf_ops/collectives/hierarchical/reduce_blocks.h"
#include "tf_ops/collectives/ranges.h"

namespace hvd {
namespace {

// Tensors with fewer elements travel as they are.
constexpr size_t kMinPackedElements = 4096;

enum class Keep { kOwnInputs, kOwnOutputs };

// What belongs to the ranks of a host, back to back. What `keep` names is
// dropped for other ranks than `rank`.
std::vector<ListTensor> Concatenate(const std::vector<TensorList>& by_rank,
                                    const std::vector<int>& ranks, Keep keep,
                                    int rank) {
  std::vector<ListTensor> list;
  for (int from : ranks) {
    for (ListTensor t : by_rank[static_cast<size_t>(from)].tensors()) {
      if (from != rank && keep == Keep::kOwnInputs) t.input = nullptr;
      if (from != rank && keep == Keep::kOwnOutputs) t.output = nullptr;
      list.push_back(t);
    }
  }
  return list;
}

std::vector<uint64_t> BytesOf(const std::vector<TensorList>& lists) {
  std::vector<uint64_t> bytes;
  for (const TensorList& list : lists) bytes.push_back(list.num_bytes());
  return bytes;
}

void CopyParts(const std::vector<TensorList>& blocks, const BlockLayout& layout,
               uint32_t c, const std::byte* slot) {
  for (int host = 0; host < layout.num_hosts(); ++host) {
    const Range part = layout.Part(host, c);
    blocks[static_cast<size_t>(host)].CopyOut(part.begin, part.end,
                                              slot + layout.Offset(host));
  }
}

bool MayPack(const ReduceSpec& spec, const ListTensor& t) {
  const size_t num_elements = t.num_bytes / ElementBytes(spec.dtype);
  if (IsLowRank(spec.wire_format)) {
    if (!IsLowRankType(spec.dtype) || t.rows == 0) return false;
    const MatrixShape shape{t.rows, num_elements / t.rows};
    if (!IsWorthLowRank(shape, LowRankOf(spec.wire_format))) return false;
  }
  return IsFloating(spec.dtype) &&
         (spec.op == ReduceOp::kSum || spec.op == ReduceOp::kAverage) &&
         num_elements >= kMinPackedElements;
}

// Cuts each tensor into a part for each host, and fills up its last unit. So
// what runs together, which may change from step to step, changes no bit.
std::vector<TensorList> PaddedBlocks(const std::vector<ListTensor>& tensors,
                                     int num_hosts, size_t unit) {
  static const std::byte kZeros[kPackedElements * sizeof(double)] = {};
  std::vector<TensorList> blocks;
  for (int host = 0; host < num_hosts; ++host) {
    std::vector<ListTensor> list;
    for (const ListTensor& t : tensors) {
      const Range part = PartOf(t.num_bytes, num_hosts, host, unit);
      list.push_back({static_cast<const std::byte*>(t.input) + part.begin,
                      static_cast<std::byte*>(t.output) + part.begin,
                      part.size()});
      const size_t rest = (unit - part.size() % unit) % unit;
      list.push_back({kZeros, nullptr, rest});
    }
    blocks.emplace_back(std::move(list));
  }
  return blocks;
}

bool IsScaledInteger(const ReduceSpec& spec) {
  return !IsFloating(spec.dtype) &&
         (spec.op == ReduceOp::kAverage || spec.prescale != 1.0 ||
          spec.postscale != 1.0);
}

int PowerOfTwoFrom(size_t n) {
  int power = 1;
  while (static_cast<size_t>(power) < n) power *= 2;
  return power;
}

// How the ranks of a host combine, and how the hosts do.
struct TwoSpecs {
  ReduceSpec ranks;
  ReduceSpec hosts;
};

TwoSpecs Split(const ReduceSpec& spec, const HostLayout& layout) {
  TwoSpecs two;
  two.ranks = spec;
  two.ranks.postscale = 1.0;
  two.ranks.wire_format = WireFormat::kExact;
  two.hosts = spec;
  two.hosts.prescale = 1.0;
  if (spec.op != ReduceOp::kAverage) return two;
  two.ranks.op = ReduceOp::kSum;
  if (spec.dtype == DataType::kFloat16) {
    // A sum may not fit where the average does.
    size_t most = 1;
    for (const std::vector<int>& ranks : layout.ranks) {
      most = std::max(most, ranks.size());
    }
    const int scale = PowerOfTwoFrom(most);
    two.ranks.postscale = 1.0 / scale;
    two.hosts.postscale *= scale;
  }
  return two;
}

}  // namespace

HierarchicalCollectives::HierarchicalCollectives(HostSlabs* slabs,
                                                 ControlChannel* control,
                                                 Membership* membership,
                                                 HostLayout layout)
    : slabs_(slabs),
      control_(control),
      membership_(membership),
      layout_(std::move(layout)),
      rank_(layout_.rank()),
      size_(layout_.size()),
      hosts_(static_cast<size_t>(size_)) {
  for (int host = 0; host < layout_.num_hosts(); ++host) {
    for (int rank : layout_.ranks[static_cast<size_t>(host)]) {
      hosts_[static_cast<size_t>(rank)] = host;
    }
  }
}

HierarchicalCollectives::~HierarchicalCollectives() {
  if (slabs_->rank() == 0) membership_->EndWire();
}

Status HierarchicalCollectives::Start(WireJob job) {
  if (slabs_->rank() != 0) return Status::Ok();
  job.first_chunk = slabs_->next_chunk();
  std::vector<uint8_t> bytes;
  Encode(job, &bytes);
  control_->Send(slabs_->size(), bytes);
  // The wire reads the job before it can need anything of this rank.
  return control_->FlushAll();
}

Status HierarchicalCollectives::Allreduce(const TensorList& tensors,
                                          const ReduceSpec& spec) {
  if (tensors.num_bytes() == 0) return Status::Ok();
  if (spec.wire_format != WireFormat::kExact) {
    return AllreducePacked(tensors, spec);
  }
  if (IsScaledInteger(spec)) {
    std::vector<TensorList> by_rank;
    for (int rank = 0; rank < size_; ++rank) {
      const Range part = PartOf(tensors.num_bytes(), size_, rank, UnitOf(spec));
      by_rank.push_back(tensors.Slice(part.begin, part.end));
    }
    HVD_RETURN_IF_ERROR(ReduceScaledIntegers(by_rank, spec));
    std::vector<TensorList> results;
    for (const TensorList& list : by_rank) {
      std::vector<ListTensor> outputs = list.tensors();
      for (ListTensor& t : outputs) t.input = t.output;
      results.emplace_back(std::move(outputs));
    }
    return Allgather(results);
  }
  std::vector<TensorList> blocks;
  for (int host = 0; host < layout_.num_hosts(); ++host) {
    const Range block =
        PartOf(tensors.num_bytes(), layout_.num_hosts(), host, UnitOf(spec));
    blocks.push_back(tensors.Slice(block.begin, block.end));
  }
  return RunReducing(blocks, spec, /*gathers=*/true);
}

Status HierarchicalCollectives::AllreducePacked(const TensorList& tensors,
                                                const ReduceSpec& spec) {
  std::vector<ListTensor> packed;
  std::vector<ListTensor> others;
  for (const ListTensor& t : tensors.tensors()) {
    (MayPack(spec, t) ? packed : others).push_back(t);
  }
  ReduceSpec exact = spec;
  exact.wire_format = WireFormat::kExact;
  HVD_RETURN_IF_ERROR(Allreduce(TensorList(std::move(others)), exact));
  if (packed.empty()) return Status::Ok();
  std::vector<WireJob::Tensor> with_residuals;
  if (spec.wire_format != WireFormat::kInt8) {
    for (const ListTensor& t : packed) {
      with_residuals.push_back({t.key, t.num_bytes, t.rows});
    }
  }
  if (IsLowRank(spec.wire_format)) {
    return RunLowRank(TensorList(std::move(packed)), spec,
                      std::move(with_residuals));
  }
  return RunReducing(PaddedBlocks(packed, layout_.num_hosts(), UnitOf(spec)),
                     spec, /*gathers=*/true, std::move(with_residuals));
}

Status HierarchicalCollectives::RunReducing(
    const std::vector<TensorList>& blocks, const ReduceSpec& spec, bool gathers,
    std::vector<WireJob::Tensor> with_residuals) {
  const TwoSpecs specs = Split(spec, layout_);
  WireJob job;
  job.kind = WireJob::Kind::kBlocks;
  job.reduces = true;
  job.gathers = gathers;
  job.spec = specs.hosts;
  job.bytes = BytesOf(blocks);
  job.tensors = std::move(with_residuals);
  const BlockLayout layout(job, slabs_->slot_bytes());
  HVD_RETURN_IF_ERROR(Start(std::move(job)));
  const uint32_t first = slabs_->next_chunk();
  BlockReducer reducer(slabs_, blocks, layout, specs.ranks);
  return RunPipeline(
      slabs_, layout.num_chunks(), /*fill_lag=*/1,
      [&](uint32_t step) { return reducer.Step(step); },
      [&](uint32_t c) {
        const std::byte* const slot = WireSlot(slabs_, first + c);
        if (gathers) return CopyParts(blocks, layout, c, slot);
        const Range part = layout.Part(layout_.host, c);
        blocks[static_cast<size_t>(layout_.host)].CopyOut(
            part.begin, part.end, slot + layout.Offset(layout_.host));
      });
}

Status HierarchicalCollectives::RunLowRank(
    const TensorList& tensors, const ReduceSpec& spec,
    std::vector<WireJob::Tensor> matrices) {
  const TwoSpecs specs = Split(spec, layout_);
  WireJob job;
  job.kind = WireJob::Kind::kLowRank;
  job.spec = specs.hosts;
  job.bytes = {tensors.num_bytes()};
  job.tensors = std::move(matrices);
  const std::vector<TensorList> block = {tensors};
  const BlockLayout layout(job, slabs_->slot_bytes());
  HVD_RETURN_IF_ERROR(Start(std::move(job)));
  BlockReducer reducer(slabs_, block, layout, specs.ranks);
  HVD_RETURN_IF_ERROR(RunPipeline(
      slabs_, layout.num_chunks(), /*fill_lag=*/1,
      [&](uint32_t step) { return reducer.Step(step); }, [](uint32_t) {}));
  return RunCopies(
      slabs_, layout.num_chunks(), [](uint32_t, std::byte*) {},
      [&](uint32_t c, const std::byte* slot) {
        CopyParts(block, layout, c, slot);
      });
}

Status HierarchicalCollectives::Reducescatter(
    const std::vector<TensorList>& by_rank, const ReduceSpec& spec) {
  if (IsScaledInteger(spec)) return ReduceScaledIntegers(by_rank, spec);
  std::vector<TensorList> blocks;
  for (const std::vector<int>& ranks : layout_.ranks) {
    std::vector<ListTensor> list =
        Concatenate(by_rank, ranks, Keep::kOwnOutputs, rank_);
    blocks.emplace_back(std::move(list));
  }
  return RunReducing(blocks, spec, /*gathers=*/false);
}

Status HierarchicalCollectives::Allgather(
    const std::vector<TensorList>& by_rank) {
  std::vector<TensorList> blocks;
  for (const std::vector<int>& ranks : layout_.ranks) {
    blocks.emplace_back(Concatenate(by_rank, ranks, Keep::kOwnInputs, rank_));
  }
  WireJob job;
  job.kind = WireJob::Kind::kBlocks;
  job.gathers = true;
  job.bytes = BytesOf(blocks);
  const BlockLayout layout(job, slabs_->slot_bytes());
  HVD_RETURN_IF_ERROR(Start(std::move(job)));
  const TensorList& own = blocks[static_cast<size_t>(layout_.host)];
  return RunCopies(
      slabs_, layout.num_chunks(),
      [&](uint32_t c, std::byte* slot) {
        const Range part = layout.Part(layout_.host, c);
        own.CopyIn(part.begin, part.end, slot + layout.Offset(layout_.host));
      },
      [&](uint32_t c, const std::byte* slot) {
        CopyParts(blocks, layout, c, slot);
      });
}

Status HierarchicalCollectives::Broadcast(const TensorList& tensors,
                                          int root_rank) {
  const size_t num_bytes = tensors.num_bytes();
  if (num_bytes == 0) return Status::Ok();
  const size_t slot_bytes = slabs_->slot_bytes();
  WireJob job;
  job.kind = WireJob::Kind::kBroadcast;
  job.host = HostOf(root_rank);
  job.bytes = {num_bytes};
  HVD_RETURN_IF_ERROR(Start(std::move(job)));
  return RunCopies(
      slabs_, static_cast<uint32_t>(DivideUp(num_bytes, slot_bytes)),
      [&](uint32_t c, std::byte* slot) {
        if (rank_ != root_rank) return;
        const Range part = ChunkOf(num_bytes, slot_bytes, c);
        tensors.CopyIn(part.begin, part.end, slot);
      },
      [&](uint32_t c, const std::byte* slot) {
        const Range part = ChunkOf(num_bytes, slot_bytes, c);
        tensors.CopyOut(part.begin, part.end, slot);
      });
}

namespace {

// What the ranks of this host send to each host, or get from it, as this rank
// sees it: the lists of other ranks have neither input nor output. By sender,
// then by receiver.
std::vector<TensorList> ListsByHost(const HostLayout& layout, bool sends,
                                    const std::vector<TensorList>& own,
                                    const ByteMatrix& bytes) {
  const std::vector<int>& local = layout.local_ranks();
  const size_t member = static_cast<size_t>(layout.member);
  std::vector<TensorList> lists;
  for (const std::vector<int>& ranks : layout.ranks) {
    std::vector<ListTensor> list;
    const auto add = [&](size_t here, int there) {
      const size_t peer = static_cast<size_t>(there);
      if (here == member) {
        const std::vector<ListTensor>& mine = own[peer].tensors();
        list.insert(list.end(), mine.begin(), mine.end());
      } else {
        list.push_back(ListTensor{nullptr, nullptr, bytes[here][peer]});
      }
    };
    if (sends) {
      for (size_t here = 0; here < local.size(); ++here) {
        for (int there : ranks) add(here, there);
      }
    } else {
      for (int there : ranks) {
        for (size_t here = 0; here < local.size(); ++here) add(here, there);
      }
    }
    lists.emplace_back(std::move(list));
  }
  return lists;
}

Status CheckLengths(const std::vector<TensorList>& lists,
                    const std::vector<size_t>& bytes) {
  for (size_t peer = 0; peer < bytes.size(); ++peer) {
    if (lists[peer].num_bytes() != bytes[peer]) {
      return Status::Internal(
          "the lists of an alltoall do not fit its bytes with rank " +
          std::to_string(peer));
    }
  }
  return Status::Ok();
}

}  // namespace

Status HierarchicalCollectives::Alltoall(const AlltoallLists& lists,
                                         const AlltoallBytes& bytes) {
  const size_t member = static_cast<size_t>(layout_.member);
  HVD_RETURN_IF_ERROR(CheckLengths(lists.send, bytes.sent[member]));
  HVD_RETURN_IF_ERROR(CheckLengths(lists.recv, bytes.received[member]));
  const std::vector<TensorList> sent =
      ListsByHost(layout_, true, lists.send, bytes.sent);
  const std::vector<TensorList> received =
      ListsByHost(layout_, false, lists.recv, bytes.received);
  WireJob job;
  job.kind = WireJob::Kind::kAlltoall;
  job.bytes = BytesOf(sent);
  job.received = BytesOf(received);
  const uint64_t longest =
      std::max(*std::max_element(job.bytes.begin(), job.bytes.end()),
               *std::max_element(job.received.begin(), job.received.end()));
  const size_t half = slabs_->slot_bytes() / 2;
  const BlockLayout to(job.bytes, longest, half);
  const BlockLayout from(job.received, longest, half);
  const int num_hosts = layout_.num_hosts();
  HVD_RETURN_IF_ERROR(Start(std::move(job)));
  return RunCopies(
      slabs_, to.num_chunks(),
      [&](uint32_t c, std::byte* slot) {
        for (int host = 0; host < num_hosts; ++host) {
          const Range part = to.Part(host, c);
          sent[static_cast<size_t>(host)].CopyIn(part.begin, part.end,
                                                 slot + to.Offset(host));
        }
      },
      [&](uint32_t c, const std::byte* slot) {
        for (int host = 0; host < num_hosts; ++host) {
          const Range part = from.Part(host, c);
          // What stays on this host is where it was written.
          const size_t offset = host == layout_.host
                                    ? to.Offset(host)
                                    : from.Offset(num_hosts + host);
          received[static_cast<size_t>(host)].CopyOut(part.begin, part.end,
                                                      slot + offset);
        }
      });
}

Status HierarchicalCollectives::ReduceScaledIntegers(
    const std::vector<TensorList>& by_rank, const ReduceSpec& spec) {
  const TensorList& own = by_rank[static_cast<size_t>(rank_)];
  const size_t num_bytes = own.num_bytes();
  const size_t size = static_cast<size_t>(size_);
  const std::unique_ptr<std::byte[]> values(
      new (std::nothrow) std::byte[size * num_bytes + 1]);
  if (values == nullptr) {
    return Status::Internal("out of memory for a reduction of integers");
  }
  AlltoallLists lists;
  for (size_t peer = 0; peer < size; ++peer) {
    lists.send.push_back(by_rank[peer]);
    lists.recv.emplace_back(std::vector<ListTensor>{
        ListTensor{nullptr, values.get() + peer * num_bytes, num_bytes}});
  }
  const auto sent = [&by_rank](int, int to) {
    return by_rank[static_cast<size_t>(to)].num_bytes();
  };
  HVD_RETURN_IF_ERROR(Alltoall(lists, AlltoallBytesOf(*this, sent)));
  std::vector<const void*> sources(size);
  size_t offset = 0;
  own.ForEach(0, num_bytes,
              [&](const std::byte*, std::byte* out, size_t count) {
                for (size_t peer = 0; peer < size; ++peer) {
                  sources[peer] = values.get() + peer * num_bytes + offset;
                }
                Reduce(spec, sources.data(), size_, out,
                       count / ElementBytes(spec.dtype));
                offset += count;
              });
  return Status::Ok();
}

}  // namespace hvd
