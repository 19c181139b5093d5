#include "tf_ops/wire/mpi_abi/mpi_wire.h"

#include <dlfcn.h>

#include <algorithm>
#include <sstream>
#include <utility>

namespace hvd {
namespace {

template <typename F>
bool Find(void* library, const char* name, F* function) {
  *function = reinterpret_cast<F>(dlsym(library, name));
  return *function != nullptr;
}

bool FindAll(void* library, MpiApi* api) {
  return Find(library, "MPI_Init_thread", &api->init_thread) &&
         Find(library, "MPI_Comm_rank", &api->comm_rank) &&
         Find(library, "MPI_Comm_size", &api->comm_size) &&
         Find(library, "MPI_Comm_set_errhandler", &api->comm_set_errhandler) &&
         Find(library, "MPI_Error_string", &api->error_string) &&
         Find(library, "MPI_Get_library_version", &api->get_library_version) &&
         Find(library, "MPI_Isend", &api->isend) &&
         Find(library, "MPI_Irecv", &api->irecv) &&
         Find(library, "MPI_Testsome", &api->testsome) &&
         Find(library, "MPI_Iprobe", &api->iprobe);
}

class MpiWire : public Wire {
 public:
  MpiWire(const MpiWorld* world, int set_number, std::vector<int> ranks)
      : world_(*world),
        first_tag_(set_number * kNumWireTags),
        ranks_(std::move(ranks)),
        host_(static_cast<int>(
            std::find(ranks_.begin(), ranks_.end(), world->rank()) -
            ranks_.begin())) {}

  int host() const override { return host_; }
  int num_hosts() const override { return static_cast<int>(ranks_.size()); }

  Status Send(int host, int tag, const void* data, size_t num_bytes,
              WireTransfer* transfer) override {
    MpiApi::Request request;
    const int error = world_.api().isend(
        data, static_cast<int>(num_bytes), MpiApi::Byte(), RankOf(host),
        first_tag_ + tag, MpiApi::World(), &request);
    Begin(request, transfer);
    return world_.AsStatus(error, "sending to another host");
  }

  Status Receive(int host, int tag, void* data, size_t num_bytes,
                 WireTransfer* transfer) override {
    MpiApi::Request request;
    const int error = world_.api().irecv(
        data, static_cast<int>(num_bytes), MpiApi::Byte(), RankOf(host),
        first_tag_ + tag, MpiApi::World(), &request);
    Begin(request, transfer);
    return world_.AsStatus(error, "receiving from another host");
  }

  Status Poll(const std::vector<WireTransfer*>& transfers) override {
    const size_t count = transfers.size();
    requests_.resize(count);
    ended_.resize(count);
    statuses_.resize(count);
    for (size_t i = 0; i < count; ++i) {
      requests_[i] = reinterpret_cast<MpiApi::Request>(transfers[i]->handle);
    }
    int num_ended = 0;
    int error =
        world_.api().testsome(static_cast<int>(count), requests_.data(),
                              &num_ended, ended_.data(), statuses_.data());
    if (num_ended == MpiApi::kUndefined) num_ended = 0;
    for (int i = 0; i < num_ended; ++i) {
      const auto at = static_cast<size_t>(i);
      transfers[static_cast<size_t>(ended_[at])]->is_active = false;
      if (error == MpiApi::kErrInStatus &&
          statuses_[at].error != MpiApi::kSuccess) {
        error = statuses_[at].error;
      }
    }
    return world_.AsStatus(error, "a transfer between hosts");
  }

  Status Progress() override {
    int found = 0;
    return world_.AsStatus(
        world_.api().iprobe(MpiApi::kAnySource, MpiApi::kAnyTag,
                            MpiApi::World(), &found, nullptr),
        "looking for messages of other hosts");
  }

 private:
  int RankOf(int host) const { return ranks_[static_cast<size_t>(host)]; }
  static void Begin(MpiApi::Request request, WireTransfer* transfer) {
    transfer->handle = reinterpret_cast<uintptr_t>(request);
    transfer->is_active = true;
  }

  const MpiWorld& world_;
  const int first_tag_;
  const std::vector<int> ranks_;  // in the world, by host
  const int host_;
  // Of Poll, by transfer; the last two by transfer that has ended.
  std::vector<MpiApi::Request> requests_;
  std::vector<int> ended_;
  std::vector<MpiApi::Status> statuses_;
};

}  // namespace

Status MpiWorld::Begin(const std::string& path,
                       std::unique_ptr<MpiWorld>* world) {
  // Its plugins look for its symbols.
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    return Status::Internal(std::string("MPI cannot be loaded: ") + dlerror());
  }
  std::unique_ptr<MpiWorld> made(new MpiWorld());
  if (!FindAll(library, &made->api_)) {
    return Status::Internal(path + " is not an MPI of the standard ABI");
  }
  const MpiApi& api = made->api_;
  int level = 0;
  HVD_RETURN_IF_ERROR(made->AsStatus(
      api.init_thread(nullptr, nullptr, MpiApi::kThreadMultiple, &level),
      "MPI_Init_thread"));
  if (level < MpiApi::kThreadMultiple) {
    return Status::Internal(path + " does not let several threads use MPI");
  }
  HVD_RETURN_IF_ERROR(made->AsStatus(
      api.comm_set_errhandler(MpiApi::World(), MpiApi::ErrorsReturn()),
      "MPI_Comm_set_errhandler"));
  HVD_RETURN_IF_ERROR(made->AsStatus(
      api.comm_rank(MpiApi::World(), &made->rank_), "MPI_Comm_rank"));
  HVD_RETURN_IF_ERROR(made->AsStatus(
      api.comm_size(MpiApi::World(), &made->size_), "MPI_Comm_size"));
  std::string version(MpiApi::kMaxLibraryVersionString, '\0');
  int length = 0;
  HVD_RETURN_IF_ERROR(
      made->AsStatus(api.get_library_version(version.data(), &length),
                     "MPI_Get_library_version"));
  // "MPICH Version:      5.0.2", and more lines.
  std::istringstream words(version.substr(0, version.find('\n')));
  for (std::string word; words >> word;) {
    made->version_ += (made->version_.empty() ? "" : " ") + word;
  }
  *world = std::move(made);
  return Status::Ok();
}

Status MpiWorld::AsStatus(int error, const std::string& what) const {
  if (error == MpiApi::kSuccess) return Status::Ok();
  std::string text(MpiApi::kMaxErrorString, '\0');
  int length = 0;
  if (api_.error_string(error, text.data(), &length) != MpiApi::kSuccess) {
    text = "error " + std::to_string(error);
  }
  return Status::Internal(what + " failed: " + text.c_str());
}

std::unique_ptr<Wire> MakeMpiWire(const MpiWorld* world, int set_number,
                                  std::vector<int> ranks) {
  return std::make_unique<MpiWire>(world, set_number, std::move(ranks));
}

}  // namespace hvd
