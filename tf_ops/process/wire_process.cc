#include "tf_ops/process/wire_process.h"

#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tf_ops/collectives/wire/wire_loop.h"
#include "tf_ops/common/keep.h"
#include "tf_ops/common/status.h"
#include "tf_ops/host/shm/shm.h"
#include "tf_ops/wire/mpi_abi/mpi_wire.h"

namespace hvd {
namespace {

// After the last job: the network library sends what it has taken, if called.
constexpr int kNumFarewells = 200;
constexpr std::chrono::milliseconds kFarewell{1};
constexpr int kLook = 5;  // milliseconds
// The kernel may prolong a nap by so much; it would be 50 microseconds.
constexpr unsigned long kTimerSlack = 1000;  // nanoseconds
constexpr std::chrono::milliseconds kLookForFiles{2};

bool Write(int fd, const std::string& text) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = write(fd, text.data() + done, text.size() - done);
    if (count <= 0) return false;
    done += static_cast<size_t>(count);
  }
  return true;
}

// Without its newline. False at the end.
bool ReadLine(int fd, std::string* buffer, std::string* line) {
  size_t end;
  while ((end = buffer->find('\n')) == std::string::npos) {
    char bytes[4096];
    const ssize_t count = read(fd, bytes, sizeof(bytes));
    if (count <= 0) return false;
    buffer->append(bytes, static_cast<size_t>(count));
  }
  *line = buffer->substr(0, end);
  buffer->erase(0, end + 1);
  return true;
}

// MPICH has a file for the other processes of this host, of which there are
// none. It would stay when this process is killed.
void RemoveFilesOfMpi() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const size_t begin = line.find("/dev/shm/mpich_shm_");
    if (begin != std::string::npos) (void)unlink(line.c_str() + begin);
  }
}

// Does so as soon as they are there: MPI's start may take long.
class FilesOfMpi {
 public:
  FilesOfMpi() : thread_([this] { Run(); }) {}
  ~FilesOfMpi() {
    must_stop_.store(true);
    thread_.join();
    RemoveFilesOfMpi();
  }

 private:
  void Run() {
    while (!must_stop_.load()) {
      RemoveFilesOfMpi();
      std::this_thread::sleep_for(kLookForFiles);
    }
  }

  std::atomic<bool> must_stop_{false};
  std::thread thread_;
};

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool FromHex(const std::string& hex, std::string* bytes) {
  if (hex.size() % 2 != 0) return false;
  for (size_t i = 0; i < hex.size(); i += 2) {
    const int high = HexDigit(hex[i]);
    const int low = HexDigit(hex[i + 1]);
    if (high < 0 || low < 0) return false;
    bytes->push_back(static_cast<char>(high * 16 + low));
  }
  return true;
}

// One process set.
struct Service {
  std::unique_ptr<HostGroup> group;
  std::unique_ptr<Wire> wire;
  std::unique_ptr<WireLoop> loop;
  std::atomic<bool> has_ended{false};
  std::thread thread;
};

class WireProcess {
 public:
  WireProcess(const MpiWorld* world, int control)
      : world_(*world), control_(control) {}

  Status Obey(const std::string& line) {
    std::istringstream words(line);
    std::string command;
    words >> command;
    if (command == "open") return Open(&words);
    if (command == "close") {
      int set = -1;
      words >> set;
      return Close(set);
    }
    return Status::InvalidArgument("unknown command: " + line);
  }

  void End() {
    while (!services_.empty()) (void)Close(services_.begin()->first).ok();
    const std::unique_ptr<Wire> wire = MakeMpiWire(&world_, 0, {0});
    for (int i = 0; i < kNumFarewells; ++i) {
      if (!wire->Progress().ok()) return;
      std::this_thread::sleep_for(kFarewell);
    }
  }

 private:
  Status Open(std::istringstream* words) {
    int set = -1;
    int size = 0;
    uint64_t epoch = 0;
    ShmSegment segment;
    std::string token;
    std::string list;
    *words >> set >> segment.pid >> segment.fd >> token >> size >> epoch >>
        list;
    std::vector<int> ranks;
    std::istringstream numbers(list);
    for (std::string number; std::getline(numbers, number, ',');) {
      ranks.push_back(std::atoi(number.c_str()));
      if (ranks.back() < 0 || ranks.back() >= world_.size()) size = 0;
    }
    if (words->fail() || set < 0 || set > kMaxSetNumber || size < 1 ||
        ranks.empty() || services_.count(set) > 0 ||
        !FromHex(token, &segment.token)) {
      return Status::InvalidArgument("the set cannot be served: open " +
                                     words->str());
    }
    segment.shape = RegionShape(size, /*with_wire=*/true);
    auto service = std::make_unique<Service>();
    HVD_RETURN_IF_ERROR(AttachAsWire(segment, epoch, &service->group));
    service->wire = MakeMpiWire(&world_, set, std::move(ranks));
    service->loop =
        std::make_unique<WireLoop>(service->group.get(), service->wire.get());
    service->thread = std::thread([kept = service.get()] {
      (void)prctl(PR_SET_NAME, "hvd_wire_loop");
      (void)prctl(PR_SET_TIMERSLACK, kTimerSlack);
      // The ranks hear of an error through their region.
      (void)kept->loop->Run().ok();
      kept->has_ended.store(true);
    });
    services_[set] = std::move(service);
    return Status::Ok();
  }

  Status Close(int set) {
    const auto found = services_.find(set);
    if (found == services_.end()) {
      return Status::InvalidArgument("set " + std::to_string(set) +
                                     " is not served");
    }
    // The engine has asked it to end; but the leader may die meanwhile.
    while (!found->second->has_ended.load()) {
      pollfd polled{control_, POLLIN, 0};
      if (poll(&polled, 1, kLook) > 0) std::_Exit(1);
    }
    found->second->thread.join();
    // MPI may still write there.
    if (found->second->loop->has_transfers()) {
      KeepForever(std::move(found->second));
    }
    services_.erase(found);
    return Status::Ok();
  }

  const MpiWorld& world_;
  const int control_;
  std::map<int, std::unique_ptr<Service>> services_;  // by number of the set
};

std::string AnswerOf(const Status& status) {
  if (status.ok()) return "ok\n";
  std::string text = "error " + status.message();
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  return text + "\n";
}

}  // namespace

int RunWireProcess(int control, const char* mpi_path) {
  (void)prctl(PR_SET_NAME, "hvd_wire");
  std::unique_ptr<MpiWorld> world;
  Status begun;
  {
    const FilesOfMpi files;
    begun = MpiWorld::Begin(mpi_path, &world);
  }
  if (!begun.ok()) {
    Write(control, AnswerOf(begun));
    return 1;
  }
  std::ostringstream ready;
  ready << "ready " << world->rank() << ' ' << world->size() << ' '
        << world->version() << '\n';
  if (!Write(control, ready.str())) return 1;
  WireProcess process(world.get(), control);
  std::string buffer;
  std::string line;
  while (ReadLine(control, &buffer, &line)) {
    if (line == "end") {
      process.End();
      Write(control, "ok\n");
      return 0;
    }
    if (!Write(control, AnswerOf(process.Obey(line)))) return 1;
  }
  std::_Exit(1);  // the leader is gone; threads may still wait for others
}

}  // namespace hvd

int hvd_run_wire_process(int control, const char* mpi_path) {
  const int status = hvd::RunWireProcess(control, mpi_path);
  // MPI's own end would wait for the other hosts.
  std::_Exit(status);
}
