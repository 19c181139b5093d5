// The collectives of one process set, as the ranks of one host or of several
// run them.
#pragma once

#include <cstddef>
#include <vector>

#include "tf_ops/collectives/reduce.h"
#include "tf_ops/collectives/tensor_list.h"
#include "tf_ops/common/status.h"

namespace hvd {

// What one rank sends and receives, by peer, itself included. Each list has as
// many bytes as the pair exchanges, in any number of tensors.
struct AlltoallLists {
  std::vector<TensorList> send;  // only inputs are used
  // Only outputs are used; they overlap no input. What has none is dropped.
  std::vector<TensorList> recv;
};

// Bytes by rank, then by rank; may be 0.
using ByteMatrix = std::vector<std::vector<size_t>>;

// What the ranks of this host send and receive in an alltoall, by rank of this
// host, then by rank of the set.
struct AlltoallBytes {
  ByteMatrix sent;
  ByteMatrix received;
};

// All ranks make the same calls in the same order. One thread at a time.
class Collectives {
 public:
  virtual ~Collectives() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::vector<int> local_ranks() const = 0;  // of this host

  // Replaces the outputs by the reduction of the inputs of all ranks. All ranks
  // call it with lists of the same total length and the same `spec`. Sums go in
  // one order: the result has the same bits on every rank and in every run.
  virtual Status Allreduce(const TensorList& tensors,
                           const ReduceSpec& spec) = 0;

  // Copies the inputs of every rank to the outputs of every rank. `by_rank[r]`
  // describes what rank r gives: its inputs (needed only on rank r) and where
  // they go on this rank; where an output is null, what would go there is
  // dropped. Each list has the same lengths on all ranks; they may differ by
  // `r`. This rank's inputs may be its outputs.
  virtual Status Allgather(const std::vector<TensorList>& by_rank) = 0;

  // Copies the inputs of `root_rank` to the outputs of every rank. The root's
  // own outputs may be its inputs. Lists have the same total length on all
  // ranks.
  virtual Status Broadcast(const TensorList& tensors, int root_rank) = 0;

  // Reduces the inputs of all ranks; each rank gets its own part. `by_rank[r]`
  // describes the part of rank r: this rank's inputs for it and, on rank r,
  // where the result goes. That may be those inputs, but may overlap no others.
  // Each list has the same lengths on all ranks; they may differ by `r` and be
  // 0. Sums go in the order of Allreduce.
  virtual Status Reducescatter(const std::vector<TensorList>& by_rank,
                               const ReduceSpec& spec) = 0;

  // Copies send[r] of this rank to recv[this rank] of rank r, for all ranks.
  // Internal, before any byte moves, if `lists` do not have the lengths that
  // `bytes` says.
  virtual Status Alltoall(const AlltoallLists& lists,
                          const AlltoallBytes& bytes) = 0;
};

// The bytes of an alltoall in which rank a sends f(a, b) bytes to rank b.
template <typename F>
AlltoallBytes AlltoallBytesOf(const Collectives& collectives, F f) {
  AlltoallBytes bytes;
  for (int local : collectives.local_ranks()) {
    bytes.sent.emplace_back();
    bytes.received.emplace_back();
    for (int peer = 0; peer < collectives.size(); ++peer) {
      bytes.sent.back().push_back(f(local, peer));
      bytes.received.back().push_back(f(peer, local));
    }
  }
  return bytes;
}

}  // namespace hvd
