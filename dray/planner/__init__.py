"""What a job will take before it runs: its workload, the model, the hardware, seconds and dollars."""
