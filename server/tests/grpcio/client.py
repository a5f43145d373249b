"""Calls a server with grpcio: `client.py ADDRESS`. Prints what it gets, a line for each call."""

import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

protos, services = grpc.protos_and_services("rls.proto")
with grpc.insecure_channel(sys.argv[1]) as channel:
    name = "envoy.service.ratelimit.v3.RateLimitService"
    health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=name), timeout=60)
    print("health", health_pb2.HealthCheckResponse.ServingStatus.Name(health.status))
    limits = services.RateLimitServiceStub(channel)

    def ask(hits, value="ann", timeout=60):
        entry = protos.Entry(key="user", value=value)
        descriptor = protos.RateLimitDescriptor(entries=[entry])
        request = protos.RateLimitRequest(domain="d", descriptors=[descriptor], hits_addend=hits)
        answer = limits.ShouldRateLimit(request, timeout=timeout)
        (status,) = answer.statuses
        limit = status.current_limit
        print(answer.overall_code, status.code, status.limit_remaining, limit.requests_per_unit, limit.unit, limit.name)

    ask(0)
    ask(2)
    ask(1)
    try:
        limits.ShouldRateLimit(protos.RateLimitRequest(domain="d"), timeout=60)
    except grpc.RpcError as error:
        print(error.code().name, error.details())
