#include "tf_ops/collectives/wire/host_sum.h"

#include <algorithm>

#include "tf_ops/collectives/ranges.h"
#include "tf_ops/collectives/reduce.h"

namespace hvd {

Status HostSum::Run(float* values, size_t count,
                    const std::function<Status()>& idle) {
  const int num_hosts = wire_->num_hosts();
  const int host = wire_->host();
  auto* const bytes = reinterpret_cast<std::byte*>(values);
  const auto part = [&](int of) {
    return PartOf(count * sizeof(float), num_hosts, of, 64);
  };
  const Range own = part(host);
  incoming_.resize(own.size() * static_cast<size_t>(num_hosts));
  transfers_.reserve(2 * static_cast<size_t>(num_hosts));
  std::vector<const void*> sources(static_cast<size_t>(num_hosts));
  sources[static_cast<size_t>(host)] = bytes + own.begin;
  for (int hop = 1; hop < num_hosts; ++hop) {
    const int to = (host + hop) % num_hosts;
    const int from = (host + num_hosts - hop) % num_hosts;
    std::byte* const in =
        incoming_.data() + own.size() * static_cast<size_t>(from);
    sources[static_cast<size_t>(from)] = in;
    HVD_RETURN_IF_ERROR(Receive(from, 0, in, own.size()));
    HVD_RETURN_IF_ERROR(Send(to, 0, bytes + part(to).begin, part(to).size()));
  }
  HVD_RETURN_IF_ERROR(WaitForAll(idle));
  Reduce(ReduceSpec(), sources.data(), num_hosts, bytes + own.begin,
         own.size() / sizeof(float));
  for (int hop = 1; hop < num_hosts; ++hop) {
    const int to = (host + hop) % num_hosts;
    const int from = (host + num_hosts - hop) % num_hosts;
    HVD_RETURN_IF_ERROR(
        Receive(from, 1, bytes + part(from).begin, part(from).size()));
    HVD_RETURN_IF_ERROR(Send(to, 1, bytes + own.begin, own.size()));
  }
  return WaitForAll(idle);
}

Status HostSum::Send(int host, int tag, const std::byte* data,
                     size_t num_bytes) {
  if (num_bytes == 0) return Status::Ok();
  transfers_.emplace_back();
  return wire_->Send(host, tag, data, num_bytes, &transfers_.back());
}

Status HostSum::Receive(int host, int tag, std::byte* data, size_t num_bytes) {
  if (num_bytes == 0) return Status::Ok();
  transfers_.emplace_back();
  return wire_->Receive(host, tag, data, num_bytes, &transfers_.back());
}

Status HostSum::WaitForAll(const std::function<Status()>& idle) {
  while (true) {
    polled_.clear();
    for (WireTransfer& transfer : transfers_) {
      if (transfer.is_active) polled_.push_back(&transfer);
    }
    if (polled_.empty()) break;
    HVD_RETURN_IF_ERROR(wire_->Poll(polled_));
    HVD_RETURN_IF_ERROR(idle());
  }
  transfers_.clear();
  return Status::Ok();
}

}  // namespace hvd
