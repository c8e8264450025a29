"""Fine-tuning: adapters, the data of a run, its steps and what it leaves behind."""
