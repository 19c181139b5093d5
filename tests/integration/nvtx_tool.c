// A profiler for NVTX: writes what it hears into the file $NVTX_TOOL_OUTPUT,
// a line for each range that ends.
#include <nvtx3/nvToolsExt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kMostRanges = 1000, kMostBytes = 200 };
static char texts[kMostRanges][kMostBytes];
static unsigned num_ranges = 0;

static nvtxRangeId_t Start(nvtxDomainHandle_t domain,
                           const nvtxEventAttributes_t* attributes) {
  (void)domain;
  if (num_ranges >= kMostRanges) return 0;
  snprintf(texts[num_ranges], kMostBytes, "%s %llu", attributes->message.ascii,
           (unsigned long long)attributes->payload.ullValue);
  return num_ranges++;
}

static void End(nvtxDomainHandle_t domain, nvtxRangeId_t id) {
  (void)domain;
  FILE* const file = fopen(getenv("NVTX_TOOL_OUTPUT"), "a");
  if (file == NULL) return;
  fprintf(file, "%s\n", texts[id]);
  fclose(file);
}

int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
  const NvtxExportTableCallbacks* const callbacks =
      (const NvtxExportTableCallbacks*)get_table(NVTX_ETID_CALLBACKS);
  NvtxFunctionTable table = NULL;
  unsigned size = 0;
  if (!callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size)) {
    return 0;
  }
  *table[NVTX_CBID_CORE2_DomainRangeStartEx] = (NvtxFunctionPointer)Start;
  *table[NVTX_CBID_CORE2_DomainRangeEnd] = (NvtxFunctionPointer)End;
  return 1;
}
