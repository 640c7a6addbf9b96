# docker build -t trainer . && docker run --shm-size=2g -v $PWD/runs:/work/runs trainer preset=lunarlander run_dir=runs/lander
# Built and run by buildah, with a Debian 12 with Python 3.11 in the place of python:3.11-slim; never on a machine with a GPU.
FROM python:3.11-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends swig g++ ffmpeg libgl1 libglib2.0-0 \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/trainer
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY trainer trainer
COPY envs envs
COPY configs configs
# For a GPU: --build-arg TORCH_INDEX=https://pypi.org/simple, and docker run --gpus all.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir torch==2.13.0 --index-url $TORCH_INDEX
RUN pip install --no-cache-dir -c constraints.txt ".[atari,box2d,minatar,tensorboard]"
WORKDIR /work
# The replay and the weights are in /dev/shm and in the run's folder: docker's default of 64 MB for /dev/shm is too small.
ENTRYPOINT ["python", "-m", "trainer.run"]
