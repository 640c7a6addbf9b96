"""Time of a prioritized draw of 512 of a million rows and of their new priorities, while rows are being written.

python -m benchmarks.priorities [--json FILE]
"""

from __future__ import annotations

import statistics
import time

from benchmarks.report import Row, parser, show

ROWS, BATCH, STREAMS, BAR_MS = 1_000_000, 512, 64, 2.0


def main() -> None:
    options = parser("Cost of prioritized draws", repeats=500).parse_args()
    import numpy as np

    from trainer.replay.priorities import PrioritizedStreamSampler
    from trainer.replay.streams import StreamLayout
    from trainer.replay.uniform import StreamSampler

    streams = StreamLayout(4, STREAMS // 4, ROWS // STREAMS)
    cursor = np.full(STREAMS, streams.ring + 1000)
    uniform = StreamSampler(cursor, streams, ahead=3)
    sampler = PrioritizedStreamSampler(uniform, 0.6, 0.4, 1e-6, np.zeros(streams.rows, bool), BATCH)
    sampler.adopt()
    rng, seconds = np.random.default_rng(0), []
    everything = np.divmod(np.arange(streams.rows), streams.ring)
    sampler.update(everything[0], everything[1] + 1000, rng.exponential(size=streams.rows))
    for _ in range(options.repeats):
        cursor += 1  # 64 new rows an update
        error = rng.exponential(size=BATCH)
        start = time.perf_counter()
        stream, step = sampler.draw(BATCH)
        sampler.weights(stream, step, BATCH)
        sampler.update(stream, step, error)
        seconds.append(time.perf_counter() - start)
    detail = f"median of {options.repeats}; {STREAMS} new rows taken in and dropped each time"
    name = f"{BATCH} of {ROWS:,} rows: take in, draw, weight, update"
    show("Prioritized replay", [Row(name, statistics.median(seconds) * 1e3, "ms", BAR_MS, True, detail)], options.json)


if __name__ == "__main__":
    main()
