// Stored codes [rows][cols K / 32] to the units of packed.cuh. One thread writes one word.
// RUNS: runs of 32 in a block.
extern "C" __global__ void repack(const u32* from, u32* to, u32 rows, u32 runs_per_row, u64 count, u32 inner) {
    const u64 index = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= count) return;
    const u64 unit = index / UNIT_WORDS;
    const u32 word = (u32)(index % UNIT_WORDS);
    const u32 reduced = (u32)(unit % inner);
    const u32 group = (u32)(unit / inner);
    u32 lane, stream, k;
    if (word < CODE_WORDS) {
        const u32 full = LANE_WORDS / 4 * 4;
        u32 j;
        if (word < full * 32) {
            lane = word % 128 / 4, j = word / 128 * 4 + word % 4;
        } else {
            lane = (word - full * 32) / 2, j = full + (word - full * 32) % 2;
        }
        stream = j / K, k = j % K;
    } else {
        lane = (word - CODE_WORDS) / STREAMS, stream = (word - CODE_WORDS) % STREAMS, k = K;
    }
    const u32 g = lane / 4, t = lane % 4;
    u32 row, run;
    if (AXIS == 0) {
        row = reduced * 8 + t + 4 * stream, run = group * 8 + g;
    } else {
        row = group * 16 + g + 8 * (stream & 1), run = reduced * 8 + t + 4 * (stream >> 1);
    }
    u32 value = 0;
    if (row < rows && run < runs_per_row) {
        const u32 block = run / RUNS;
        u32 inside = run % RUNS;
        if (k == K) inside = (inside + RUNS - 1) % RUNS, k = 0;
        value = from[(u64)row * runs_per_row * K + (u64)block * RUNS * K + (RUNS - 1 - inside) * K + k];
    }
    to[index] = value;
}
