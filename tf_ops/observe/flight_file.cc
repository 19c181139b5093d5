#include "tf_ops/observe/flight_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>

namespace hvd {
namespace {

constexpr int kVersion = 1;  // of the format

void AppendText(const std::string& text, std::string* json) {
  json->push_back('"');
  for (char c : text) {
    if (c == '"' || c == '\\') {
      json->push_back('\\');
      json->push_back(c);
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof(escape), "\\u%04x", c);
      json->append(escape);
    } else {
      json->push_back(c);
    }
  }
  json->push_back('"');
}

void AppendKey(const char* key, std::string* json) {
  if (json->back() != '{') json->append(", ");
  json->push_back('"');
  json->append(key);
  json->append("\": ");
}

void Add(const char* key, const std::string& text, std::string* json) {
  AppendKey(key, json);
  AppendText(text, json);
}

void Add(const char* key, int64_t number, std::string* json) {
  AppendKey(key, json);
  json->append(std::to_string(number));
}

// Leaves out what has not happened.
void AddTime(const char* key, Clock::time_point time, std::string* json) {
  if (time != Clock::time_point()) Add(key, Nanoseconds(time), json);
}

const char* NameOf(FlightRecord::State state) {
  switch (state) {
    case FlightRecord::State::kWaiting:
      return "waiting";
    case FlightRecord::State::kNegotiated:
      return "negotiated";
    case FlightRecord::State::kRunning:
      return "running";
    case FlightRecord::State::kDone:
      return "done";
    case FlightRecord::State::kFailed:
      return "failed";
  }
  return "unknown";
}

std::string LineOf(const FlightHeader& header) {
  const std::chrono::nanoseconds unix_time =
      std::chrono::system_clock::now().time_since_epoch();
  std::string json = "{";
  Add("flight_record", kVersion, &json);
  Add("rank", header.rank, &json);
  Add("size", header.size, &json);
  Add("host", header.host, &json);
  Add("pid", getpid(), &json);
  Add("reason", header.reason, &json);
  Add("steps", static_cast<int64_t>(header.num_steps), &json);
  Add("epoch", header.epoch, &json);
  Add("batch", header.batch, &json);
  Add("monotonic_ns", Nanoseconds(Clock::now()), &json);
  Add("unix_ns", unix_time.count(), &json);
  return json + "}\n";
}

bool HasOp(CollectiveKind kind) {
  return kind == CollectiveKind::kAllreduce ||
         kind == CollectiveKind::kReducescatter;
}

// Of many dimensions only the first; -1 stands for the others.
void AddShape(const FlightRecord& record, std::string* json) {
  AppendKey("shape", json);
  json->push_back('[');
  const size_t num_known =
      std::min<size_t>(record.num_dimensions, record.shape.size());
  for (size_t i = 0; i < num_known; ++i) {
    if (i > 0) json->append(", ");
    json->append(std::to_string(record.shape[i]));
  }
  for (size_t i = num_known; i < record.num_dimensions; ++i) {
    json->append(", -1");
  }
  json->push_back(']');
}

std::string LineOf(const FlightRecord& record) {
  std::string json = "{";
  Add("number", static_cast<int64_t>(record.number), &json);
  if (record.collective_id != 0) {
    Add("id", static_cast<int64_t>(record.collective_id), &json);
  }
  Add("process_set", record.process_set_id, &json);
  Add("kind", CollectiveKindName(record.kind), &json);
  Add("name", record.name_text(), &json);
  if (HasOp(record.kind)) Add("op", ReduceOpName(record.op), &json);
  if (record.num_tensors > 0) {
    Add("dtype", DataTypeName(record.dtype), &json);
    AddShape(record, &json);
  }
  Add("tensors", record.num_tensors, &json);
  Add("bytes", static_cast<int64_t>(record.num_bytes), &json);
  Add("device", record.is_on_gpu ? "gpu" : "cpu", &json);
  Add("state", NameOf(record.state), &json);
  if (record.code != StatusCode::kOk) {
    Add("error", StatusCodeName(record.code), &json);
  }
  AddTime("enqueued_ns", record.enqueued, &json);
  AddTime("negotiated_ns", record.negotiated, &json);
  AddTime("begun_ns", record.begun, &json);
  AddTime("ended_ns", record.ended, &json);
  if (record.last_rank >= 0) {
    Add("last_rank", record.last_rank, &json);
    Add("late_ns", record.late_by.count(), &json);
  }
  return json + "}\n";
}

}  // namespace

Status WriteFlightFile(const std::string& path, const FlightHeader& header,
                       const std::vector<FlightRecord>& records) {
  const std::string partial = path + ".partial";
  std::FILE* const file = std::fopen(partial.c_str(), "wb");
  bool is_written = file != nullptr;
  if (file != nullptr) {
    const auto write = [&](const std::string& line) {
      is_written = is_written && std::fwrite(line.data(), 1, line.size(),
                                             file) == line.size();
    };
    write(LineOf(header));
    for (const FlightRecord& record : records) write(LineOf(record));
    is_written = std::fclose(file) == 0 && is_written;
  }
  if (is_written && std::rename(partial.c_str(), path.c_str()) == 0) {
    return Status::Ok();
  }
  const std::string why = std::strerror(errno);
  (void)std::remove(partial.c_str());
  return Status::Internal("the flight record cannot be written to " + path +
                          ": " + why);
}

}  // namespace hvd
