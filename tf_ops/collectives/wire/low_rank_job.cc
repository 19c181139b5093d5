#include "tf_ops/collectives/wire/low_rank_job.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>

#include "tf_ops/collectives/reduce.h"
#include "tf_ops/collectives/wire/residuals.h"

namespace hvd {
namespace {

constexpr size_t kRunElements = 2048;  // stay in the L1 cache

}  // namespace

template <typename F>
void LowRankStates::ForEach(size_t begin, size_t num_bytes, F f) {
  const size_t end = begin + num_bytes;
  const size_t element = ElementBytes(job_.spec.dtype);
  for (Part& part : parts_) {
    size_t from = std::max(begin, part.begin);
    const size_t to = std::min(end, part.end);
    while (from < to) {
      const size_t count = std::min(kRunElements, (to - from) / element);
      f(&part, (from - part.begin) / element, count, from - begin);
      from += count * element;
    }
  }
}

void LowRankStates::Begin(State* state, uint64_t seed) const {
  state->num_calls = 0;
  state->residual.assign(state->shape.num_elements(), 0.0f);
  state->left.assign(rank_ * state->shape.rows, 0.0f);
  state->right.resize(rank_ * state->shape.columns);
  Draw(seed, state->right.size(), state->right.data());
}

void LowRankStates::Prepare(const WireJob& job) {
  job_ = job;
  rank_ = LowRankOf(job.spec.wire_format);
  parts_.clear();
  once_.clear();
  once_.reserve(job.tensors.size());  // they must not move
  if (++num_jobs_ % 1024 == 0) {
    for (auto it = by_key_.begin(); it != by_key_.end();) {
      const bool is_idle =
          it->second.last_job + Residuals::kMostIdleJobs < num_jobs_;
      it = is_idle ? by_key_.erase(it) : std::next(it);
    }
  }
  size_t begin = 0;
  for (const WireJob::Tensor& tensor : job.tensors) {
    const MatrixShape shape{tensor.rows, tensor.num_bytes /
                                             ElementBytes(job.spec.dtype) /
                                             std::max<size_t>(tensor.rows, 1)};
    State* state = nullptr;
    if (tensor.key != 0) {
      state = &by_key_[tensor.key];
      const bool is_known = state->last_job != 0 &&
                            state->shape.rows == shape.rows &&
                            state->shape.columns == shape.columns;
      const bool is_second = state->last_job == num_jobs_;  // of this job
      state->last_job = num_jobs_;
      if (!is_known) {
        *state = State();
        state->last_job = num_jobs_;
        state->shape = shape;
      }
      if (!is_known || is_second) state = nullptr;
    }
    if (state == nullptr) {
      once_.emplace_back();
      state = &once_.back();
      state->shape = shape;
    }
    // Not of what runs together, which may change from run to run.
    const uint64_t seed = tensor.key;
    if (state->right.size() != rank_ * shape.columns) Begin(state, seed);
    parts_.push_back(
        {state, seed, begin, begin + static_cast<size_t>(tensor.num_bytes)});
    begin += tensor.num_bytes;
  }
}

void LowRankStates::Take(size_t begin, size_t num_bytes,
                         const std::byte* from) {
  const DataType dtype = job_.spec.dtype;
  ForEach(begin, num_bytes,
          [&](Part* part, size_t first, size_t count, size_t offset) {
            alignas(64) float memory[kRunElements];
            const float* values = reinterpret_cast<const float*>(from + offset);
            if (dtype != DataType::kFloat32) {
              WidenHalves(dtype, from + offset, memory, count);
              values = memory;
            }
            float* const to = part->state->residual.data() + first;
            for (size_t i = 0; i < count; ++i) to[i] += values[i];
          });
}

// All hosts draw alike where they must, but each call otherwise.
uint64_t LowRankStates::SeedOf(const Part& part) {
  return part.seed + (part.state->num_calls + 1) * 0x10001;
}

void LowRankStates::MakeLeft(Part* part) {
  State& state = *part->state;
  MultiplyRight(state.residual.data(), state.shape, rank_, state.right.data(),
                state.left.data());
  part->sent = &state.left;
}

void LowRankStates::MakeRight(Part* part) {
  State& state = *part->state;
  Orthonormalize(rank_, state.shape.rows, SeedOf(*part), state.left.data());
  MultiplyLeft(state.residual.data(), state.shape, rank_, state.left.data(),
               state.right.data());
  part->sent = &state.right;
}

Status LowRankStates::SumFactors(const SumOverHosts& sum) {
  factors_.clear();
  for (const Part& part : parts_) {
    factors_.insert(factors_.end(), part.sent->begin(), part.sent->end());
  }
  HVD_RETURN_IF_ERROR(sum(factors_.data(), factors_.size()));
  const float* next = factors_.data();
  for (Part& part : parts_) {
    std::copy_n(next, part.sent->size(), part.sent->begin());
    next += part.sent->size();
    part.is_finite =
        part.is_finite && AllFinite(part.sent->data(), part.sent->size());
  }
  return Status::Ok();
}

Status LowRankStates::Combine(int num_hosts, const SumOverHosts& sum) {
  share_ = 1.0f / static_cast<float>(num_hosts);
  const bool alternates = Alternates(job_.spec.wire_format);
  for (Part& part : parts_) {
    State& state = *part.state;
    if (alternates && state.num_calls % 2 == 1) {
      MakeRight(&part);
      continue;
    }
    if (alternates) {
      Orthonormalize(rank_, state.shape.columns, SeedOf(part),
                     state.right.data());
    }
    MakeLeft(&part);
  }
  HVD_RETURN_IF_ERROR(SumFactors(sum));
  if (!alternates) {
    for (Part& part : parts_) MakeRight(&part);
    HVD_RETURN_IF_ERROR(SumFactors(sum));
  }
  for (Part& part : parts_) {
    ++part.state->num_calls;
    if (!part.is_finite) Begin(part.state, part.seed);
  }
  return Status::Ok();
}

void LowRankStates::Give(size_t begin, size_t num_bytes, std::byte* to) {
  const ReduceSpec& spec = job_.spec;
  const bool is_average = spec.op == ReduceOp::kAverage;
  const auto factor = static_cast<float>(
      spec.postscale / (is_average ? static_cast<double>(spec.num_ranks) : 1));
  ForEach(
      begin, num_bytes,
      [&](Part* part, size_t first, size_t count, size_t offset) {
        alignas(64) float values[kRunElements];
        State& state = *part->state;
        if (part->is_finite) {
          Expand(state.left.data(), state.right.data(), state.shape, rank_,
                 first, first + count, share_, state.residual.data(), values);
          for (size_t i = 0; i < count; ++i) values[i] *= factor;
        } else {
          std::fill_n(values, count, std::numeric_limits<float>::quiet_NaN());
        }
        if (spec.dtype == DataType::kFloat32) {
          std::memcpy(to + offset, values, count * sizeof(float));
        } else {
          NarrowToHalves(spec.dtype, values, to + offset, count);
        }
      });
}

}  // namespace hvd
