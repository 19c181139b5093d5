// Starts and ends this process's engines, for Python.
#pragma once

#include <pybind11/pybind11.h>
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tf_ops/process/global_engine.h"

namespace hvd {

// Shared memory: the process that made it, its descriptor there and its token.
using SegmentTuple = std::tuple<pid_t, int, pybind11::bytes>;

// Where the ranks of a job, or of a process set, are, if they are on several
// hosts.
struct Hosts {
  std::vector<std::vector<int>> ranks;  // of the set, by host
  std::string own_host;                 // its name
  // Of a leader, see TcpLinksOptions; the core takes the sockets over.
  std::vector<int> sockets;
  std::vector<std::string> leader_names;
  std::vector<std::string> host_names;
  std::vector<std::vector<int>> job_ranks;
  double heartbeat_seconds = 0.0;
  double timeout_seconds = 0.0;
};

// Returns the descriptor and the token. `has_wire`: there are several hosts.
std::pair<int, pybind11::bytes> CreateJobSegment(int size, bool has_wire);

// `epoch`: the number of the job's membership that this process joins. `pids`:
// of the members of the region.
void Init(int rank, int size, uint64_t epoch, const std::vector<pid_t>& pids,
          const std::optional<SegmentTuple>& segment,
          const std::optional<Hosts>& hosts, EngineOptions options);
void Shutdown(const std::string& reason);

// `segment` is given only on members of sets of more than one rank.
void AddSet(int32_t id, const std::vector<int>& ranks,
            const std::optional<SegmentTuple>& segment,
            const std::optional<Hosts>& hosts);
void RemoveSet(int32_t id);
std::vector<int> RanksOfSet(int32_t id);
uint64_t NumJoins(int32_t id);  // that have ended; 0 without such a set

std::shared_ptr<Engine> EngineOrRaise();
pybind11::dict Stats();
// See CommunicationSums; 0 without a job.
uint64_t NumShared();
uint64_t NumSame();
uint64_t NumBroadcastBytes();
// By rank: see CommunicationSums::num_last and late_ns.
std::vector<std::pair<uint64_t, uint64_t>> LastRanks();
uint64_t NumPending();  // requests in flight; 0 without a job
void NoteExitReason(const std::string& text);
void NoteFailure(const std::string& text);
void CheckPeers();
bool IsMinority();  // see Membership; false without a job

}  // namespace hvd
