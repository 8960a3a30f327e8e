// A libcublas.so.13 that multiplies nothing and prints the arguments of every product, a line of JSON for each.
// `stub_cublas.py` adds the functions that CuPy's binding is linked with beside these. They fail.
#include <cstdio>
#include <cstdint>

enum { SUCCESS = 0, NOT_SUPPORTED = 15, COMPUTE_64F = 70, COMPUTE_64F_PEDANTIC = 71 };
static int pointer_mode = 0;  // of a new handle: alpha and beta are in the memory of the host
static intptr_t stream = -1;
static size_t workspace = 0;

static double factor(const void* address, int compute) {
    bool wide = compute == COMPUTE_64F || compute == COMPUTE_64F_PEDANTIC;
    return wide ? *(const double*)address : *(const float*)address;
}

static void matrix(const char* name, const void* address, int type, int ld, long long stride) {
    printf("\"%s\": {\"address\": %lld, \"type\": %d, \"ld\": %d, \"stride\": %lld}, ", name, (long long)address, type,
           ld, stride);
}

static int product(const char* function, void* handle, int ta, int tb, int m, int n, int k, const void* alpha,
                   const void* a, int type_a, int lda, long long stride_a, const void* b, int type_b, int ldb,
                   long long stride_b, const void* beta, void* c, int type_c, int ldc, long long stride_c, int batch,
                   int compute, int algorithm) {
    printf("{\"function\": \"%s\", \"handle\": %lld, \"transpose\": [%d, %d], \"m\": %d, \"n\": %d, \"k\": %d, ",
           function, (long long)handle, ta, tb, m, n, k);
    matrix("a", a, type_a, lda, stride_a);
    matrix("b", b, type_b, ldb, stride_b);
    matrix("c", c, type_c, ldc, stride_c);
    printf("\"alpha\": %.17g, \"beta\": %.17g, \"batch\": %d, \"compute\": %d, \"algorithm\": %d, "
           "\"pointer_mode\": %d, \"stream\": %lld, \"workspace\": %zu}\n",
           factor(alpha, compute), factor(beta, compute), batch, compute, algorithm, pointer_mode, (long long)stream,
           workspace);
    fflush(stdout);
    return SUCCESS;
}

extern "C" {
int cublasCreate_v2(void** handle) { *handle = (void*)0xabc; return SUCCESS; }
int cublasDestroy_v2(void*) { return SUCCESS; }
int cublasSetStream_v2(void*, void* s) { stream = (intptr_t)s; workspace = 0; return SUCCESS; }  // as the real one
int cublasSetWorkspace_v2(void*, void* memory, size_t size) { workspace = memory ? size : 0; return SUCCESS; }
int cublasSetPointerMode_v2(void*, int mode) { pointer_mode = mode; return SUCCESS; }

int cublasGemmEx(void* handle, int ta, int tb, int m, int n, int k, const void* alpha, const void* a, int type_a,
                 int lda, const void* b, int type_b, int ldb, const void* beta, void* c, int type_c, int ldc,
                 int compute, int algorithm) {
    return product("gemmEx", handle, ta, tb, m, n, k, alpha, a, type_a, lda, 0, b, type_b, ldb, 0, beta, c, type_c,
                   ldc, 0, 1, compute, algorithm);
}

int cublasGemmStridedBatchedEx(void* handle, int ta, int tb, int m, int n, int k, const void* alpha, const void* a,
                               int type_a, int lda, long long stride_a, const void* b, int type_b, int ldb,
                               long long stride_b, const void* beta, void* c, int type_c, int ldc, long long stride_c,
                               int batch, int compute, int algorithm) {
    return product("gemmStridedBatchedEx", handle, ta, tb, m, n, k, alpha, a, type_a, lda, stride_a, b, type_b, ldb,
                   stride_b, beta, c, type_c, ldc, stride_c, batch, compute, algorithm);
}
}
