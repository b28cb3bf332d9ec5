# One image for workers, coordinators and the web server: compose.yaml has them as services.
# Parsed by tests/test_examples.py; not built there, since the machine of the tests has no Docker.
FROM python:3.12-slim

# torch comes with CUDA. Where no GPU is meant, an index with CPU builds makes the image several gigabytes smaller:
# docker compose build --build-arg TORCH_INDEX=URL
ARG TORCH_INDEX=""

WORKDIR /opt/rl-swarm
COPY constraints constraints
RUN pip install --no-cache-dir -c constraints/torch.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch
COPY pyproject.toml README.md LICENSE ./
COPY rl_swarm rl_swarm
COPY rgym_exp rgym_exp
RUN pip install --no-cache-dir -c constraints/libraries.txt -c constraints/torch.txt ".[cloud,gdrive,lora,signed,web]"

# Volumes take over the owner of these folders.
RUN useradd --create-home swarm && mkdir -p /store /home/swarm/.rl-swarm && chown -R swarm /store /home/swarm
USER swarm
WORKDIR /home/swarm
VOLUME ["/store", "/home/swarm/.rl-swarm"]
ENV GDRIVE_PATH=/store PYTHONUNBUFFERED=1
STOPSIGNAL SIGTERM
ENTRYPOINT ["rl-swarm"]
CMD ["--help"]
